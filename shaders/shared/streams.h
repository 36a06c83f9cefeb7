// Several residual streams per token. For shaders and the host.
#ifndef KV_SHARED_STREAMS_H
#define KV_SHARED_STREAMS_H

#define KV_MOST_STREAMS 4u

#endif
