package rpc

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// A service works for its own node. One that is asked for something of another node says so in the trailer of its answer, and the gateway
// carries the request on. These are the names of what both say; no client of the gateway can set them.
const (
	elsewhereKey = "podplane-elsewhere"
	seenKey      = "podplane-seen"
	carriedKey   = "podplane-carried"
	revisionKey  = "podplane-revision"
	afterKey     = "podplane-after"

	// pushbackKey with a negative number keeps gRPC from asking the same replica once more.
	pushbackKey = "grpc-retry-pushback-ms"
)

// SayElsewhere says with the answer of a call that it, or the rest of it, is for other nodes; seen is what the asked one knows of it and the other is
// to be told. ctx is the handler's.
func SayElsewhere(ctx context.Context, seen string, nodes ...string) {
	md := metadata.MD{elsewhereKey: nodes, pushbackKey: {"-1"}}
	if seen != "" {
		md.Set(seenKey, seen)
	}
	_ = grpc.SetTrailer(ctx, md) // outside a call nobody listens
}

// ReadElsewhere reads a call's trailer: the nodes that the call is for, and what was seen of it.
func ReadElsewhere(trailer metadata.MD) (nodes []string, seen string) {
	return trailer.Get(elsewhereKey), first(trailer, seenKey)
}

// Carry marks a call as carried on to the node that it is for, with what was seen.
func Carry(ctx context.Context, seen string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, carriedKey, "true", seenKey, seen)
}

// Carried says whether a handler's call was carried on, and what was seen where it came from.
func Carried(ctx context.Context) (seen string, carried bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	return first(md, seenKey), first(md, carriedKey) != ""
}

// SayRevision says with the answer of a call at which revision of the bus its result is stored.
func SayRevision(ctx context.Context, revision uint64) {
	_ = grpc.SetHeader(ctx, metadata.Pairs(revisionKey, strconv.FormatUint(revision, 10))) // outside a call nobody listens
}

// ReadRevision reads that from a call's header; 0 when it does not say.
func ReadRevision(header metadata.MD) uint64 { return number(first(header, revisionKey)) }

// AskAfter asks a call to be answered from a view that has a revision.
func AskAfter(ctx context.Context, revision uint64) context.Context {
	return metadata.AppendToOutgoingContext(ctx, afterKey, strconv.FormatUint(revision, 10))
}

// After gives the revision that a handler's call asks for; 0 when it asks for none.
func After(ctx context.Context) uint64 {
	md, _ := metadata.FromIncomingContext(ctx)
	return number(first(md, afterKey))
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func first(md metadata.MD, key string) string {
	if v := md.Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}
