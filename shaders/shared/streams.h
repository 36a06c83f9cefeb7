// Several residual streams per token. For shaders and the host.
#ifndef KV_SHARED_STREAMS_H
#define KV_SHARED_STREAMS_H

#define KV_MOST_STREAMS 4u
#define KV_MOST_ATTENDED 64u // stream_attend
#define KV_GATE_LEAST 1e-6f  // stream_gate: the least |s| that it takes a root of, but for 0

#endif
