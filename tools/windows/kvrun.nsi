; Installer of kvrun for Windows, for one user and without an administrator's rights. tools/windows_package.sh calls
; makensis with VERSION, STAGE (a folder with the files), LIST (deletes them one by one) and OUT. Silent: setup.exe /S.
Unicode true
Target amd64-unicode
SetCompressor /SOLID lzma
!include LogicLib.nsh
!include WinMessages.nsh
!include WordFunc.nsh

!define ENTRY "Software\Microsoft\Windows\CurrentVersion\Uninstall\kvrun"
Name "kvrun ${VERSION}"
OutFile "${OUT}"
InstallDir "$LOCALAPPDATA\Programs\kvrun"
InstallDirRegKey HKCU "${ENTRY}" InstallLocation
RequestExecutionLevel user
LicenseData "${STAGE}/LICENSE.txt"
Page license
Page directory
Page instfiles
UninstPage uninstConfirm
UninstPage instfiles

; $0: the user's PATH without kvrun's folder. $1: not 0 if it may be written back: NSIS cuts texts of 1024 characters,
; and a value that is longer reads like one that is missing.
!macro read_path
	StrCpy $1 1
	ClearErrors
	ReadRegStr $0 HKCU "Environment" "Path"
	${If} ${Errors}
		StrCpy $2 0
		${Do}
			EnumRegValue $3 HKCU "Environment" $2
			${If} $3 == "Path"
				StrCpy $1 0
			${EndIf}
			IntOp $2 $2 + 1
		${LoopUntil} $3 == ""
	${EndIf}
	StrLen $2 "$0;$INSTDIR;;"
	${If} $2 >= 1000
		StrCpy $1 0
	${EndIf}
	${WordReplace} ";$0;" ";$INSTDIR;" ";" "+" $0
	${WordReplace} "$0" ";" "" "{}*" $0 ; at both ends
!macroend
!macro write_path
	${If} $0 == ""
		DeleteRegValue HKCU "Environment" "Path"
	${Else}
		WriteRegExpandStr HKCU "Environment" "Path" "$0"
	${EndIf}
	SendMessage ${HWND_BROADCAST} ${WM_SETTINGCHANGE} 0 "STR:Environment" /TIMEOUT=2000
!macroend

Section
	SetOutPath "$INSTDIR"
	File /r "${STAGE}/*"
	WriteUninstaller "$INSTDIR\uninstall.exe"
	CreateDirectory "$SMPROGRAMS\kvrun"
	SetOutPath "$PROFILE" ; where the command line begins
	CreateShortCut "$SMPROGRAMS\kvrun\kvrun command line.lnk" "$SYSDIR\cmd.exe" '/k ""$INSTDIR\kvrun.exe" help"'
	CreateShortCut "$SMPROGRAMS\kvrun\Uninstall kvrun.lnk" "$INSTDIR\uninstall.exe"
	WriteRegStr HKCU "${ENTRY}" "DisplayName" "kvrun"
	WriteRegStr HKCU "${ENTRY}" "DisplayVersion" "${VERSION}"
	WriteRegStr HKCU "${ENTRY}" "Publisher" "the kvrun authors"
	WriteRegStr HKCU "${ENTRY}" "InstallLocation" "$INSTDIR"
	WriteRegStr HKCU "${ENTRY}" "UninstallString" '"$INSTDIR\uninstall.exe"'
	WriteRegStr HKCU "${ENTRY}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
	WriteRegDWORD HKCU "${ENTRY}" "NoModify" 1
	WriteRegDWORD HKCU "${ENTRY}" "NoRepair" 1
	!insertmacro read_path
	${If} $1 != 0
		${If} $0 != ""
			StrCpy $0 "$0;"
		${EndIf}
		StrCpy $0 "$0$INSTDIR"
		!insertmacro write_path
	${Else}
		DetailPrint "PATH is too long to be changed here; add $INSTDIR to it by hand"
	${EndIf}
SectionEnd

; Files that others put into the folder stay, and the folder with them.
Section Uninstall
	SetOutPath "$TEMP"
	!include "${LIST}"
	Delete "$INSTDIR\uninstall.exe"
	RMDir "$INSTDIR"
	Delete "$SMPROGRAMS\kvrun\kvrun command line.lnk"
	Delete "$SMPROGRAMS\kvrun\Uninstall kvrun.lnk"
	RMDir "$SMPROGRAMS\kvrun"
	DeleteRegKey HKCU "${ENTRY}"
	!insertmacro read_path
	${If} $1 != 0
		!insertmacro write_path
	${EndIf}
SectionEnd
