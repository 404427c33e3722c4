// Package api is the gRPC front of syncd: PodService, ConfigMapService, SecretService, EventService and NodeService with Kubernetes' own
// JSON in google.api.HttpBody. It decodes, asks admission, calls the store and encodes; it decides nothing and keeps no state.
//
// Errors are faults (internal/fault); the interceptors of internal/rpc translate them. Lists are streamed in pieces of at most 512 KiB that make one JSON document together. A watch is
// one JSON object a line and a message each: it begins with the present state unless a resourceVersion says where to go on; a position
// that is no longer known is an error of kind Expired before the first message. A watcher that is too slow gets an ERROR event with a
// Status of code 410 and must list again.
package api
