package fault

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind says what an error means to the one who gets it. The zero Kind, None, is the kind of a nil error.
type Kind uint8

const (
	// None is the kind of no error.
	None Kind = iota
	// Invalid: the object is understood and breaks a rule; Fields names the fields. Trying again does not help.
	Invalid
	// BadRequest: the request can't be understood at all (a body that does not parse, a query parameter of the wrong type).
	BadRequest
	// NotFound: the object does not exist.
	NotFound
	// AlreadyExists: the name is taken.
	AlreadyExists
	// Conflict: the object changed meanwhile (wrong revision, UID or resourceVersion). Read again, then try again.
	Conflict
	// Expired: the position asked for (resourceVersion, continue token) is no longer kept. List again.
	Expired
	// TooLarge: the body or message is over the limit.
	TooLarge
	// Unavailable: a part that is needed is away. Try again; RetryAfter may say when.
	Unavailable
	// DeadlineExceeded: it took longer than allowed. Whether it happened is not known.
	DeadlineExceeded
	// ResourceExhausted: a limit (rate, space, count) is reached for now.
	ResourceExhausted
	// PermissionDenied: the caller is known and may not do this.
	PermissionDenied
	// Unauthenticated: the caller is not known.
	Unauthenticated
	// Unimplemented: this build or service has no such operation.
	Unimplemented
	// FailedPrecondition: the object is not in a state in which this can be done; repeating it unchanged does not help.
	FailedPrecondition
	// Internal: a defect or an error that nobody classified.
	Internal
	// Canceled: the caller went away.
	Canceled

	kindCount
)

var kindNames = [kindCount]string{
	None: "None", Invalid: "Invalid", BadRequest: "BadRequest", NotFound: "NotFound", AlreadyExists: "AlreadyExists", Conflict: "Conflict",
	Expired: "Expired", TooLarge: "TooLarge", Unavailable: "Unavailable", DeadlineExceeded: "DeadlineExceeded",
	ResourceExhausted: "ResourceExhausted", PermissionDenied: "PermissionDenied", Unauthenticated: "Unauthenticated",
	Unimplemented: "Unimplemented", FailedPrecondition: "FailedPrecondition", Internal: "Internal", Canceled: "Canceled",
}

// String gives the kind's name as it is written in this package; it is also what travels over the wire.
func (k Kind) String() string {
	if k >= kindCount {
		return kindNames[Internal]
	}
	return kindNames[k]
}

// ParseKind is the inverse of String. ok is false for a name that this build does not know.
func ParseKind(name string) (k Kind, ok bool) {
	for i, n := range kindNames {
		if n == name {
			return Kind(i), true
		}
	}
	return Internal, false
}

// Retryable says whether the same call may succeed later without anybody changing anything.
func (k Kind) Retryable() bool {
	return k == Unavailable || k == DeadlineExceeded || k == ResourceExhausted
}

// KindOf finds the kind of err: the outermost fault in its chain, else what a context, gRPC or Kubernetes error in it means, else Internal.
// KindOf(nil) is None.
func KindOf(err error) Kind {
	if err == nil {
		return None
	}
	if f, ok := errors.AsType[*Error](err); ok {
		return f.kind
	}
	if s, ok := errors.AsType[apiStatus](err); ok {
		return kindOfStatus(s.Status())
	}
	if s, ok := errors.AsType[grpcStatus](err); ok {
		return kindOfCode(s.GRPCStatus().Code())
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}

// Is says whether err is of this kind.
func Is(err error, k Kind) bool { return KindOf(err) == k }

type (
	// apiStatus is implemented by the errors of k8s.io/apimachinery/pkg/api/errors.
	apiStatus interface {
		error
		Status() metav1.Status
	}
	// grpcStatus is implemented by the errors of google.golang.org/grpc/status.
	grpcStatus interface {
		error
		GRPCStatus() *status.Status
	}
)

// codeOf and kindOfCode map kinds to gRPC codes and back. Several kinds share a code; the detail message tells them apart.
var codeOf = [kindCount]codes.Code{
	None: codes.OK, Invalid: codes.InvalidArgument, BadRequest: codes.InvalidArgument, NotFound: codes.NotFound,
	AlreadyExists: codes.AlreadyExists, Conflict: codes.Aborted, Expired: codes.OutOfRange, TooLarge: codes.ResourceExhausted,
	Unavailable: codes.Unavailable, DeadlineExceeded: codes.DeadlineExceeded, ResourceExhausted: codes.ResourceExhausted,
	PermissionDenied: codes.PermissionDenied, Unauthenticated: codes.Unauthenticated, Unimplemented: codes.Unimplemented,
	FailedPrecondition: codes.FailedPrecondition, Internal: codes.Internal, Canceled: codes.Canceled,
}

func kindOfCode(c codes.Code) Kind {
	switch c {
	case codes.OK:
		return None
	case codes.InvalidArgument:
		return BadRequest
	case codes.ResourceExhausted:
		return ResourceExhausted
	}
	for k, code := range codeOf {
		if code == c {
			return Kind(k)
		}
	}
	return Internal
}
