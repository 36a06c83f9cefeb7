// log(1 + exp(v)), also of values whose exp() is not finite.
float softplus(float v) {
	const float e = exp(min(v, 20.0));
	// log(1 + e) loses the digits of a small e
	return v > 20.0 ? v : e < 1e-3 ? e * (1.0 - e * (0.5 - e * (1.0 / 3.0))) : log(1.0 + e);
}
