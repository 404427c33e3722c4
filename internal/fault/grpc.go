package fault

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// ToGRPC makes the error that a gRPC handler returns: its code follows from the kind, its details hold what a code can't say. An error
// that is a gRPC status itself, without a kind of ours around it, passes unchanged.
func ToGRPC(err error) error {
	if err == nil {
		return nil
	}
	e, ours := errors.AsType[*Error](err)
	if !ours {
		if s, ok := errors.AsType[grpcStatus](err); ok {
			return s.GRPCStatus().Err()
		}
		e = &Error{}
	}
	kind := KindOf(err)
	detail := &podplanev1.ErrorDetail{
		Kind: kind.String(), Reason: e.reason, ObjectKind: e.object.qualified(), ObjectName: e.object.Name,
		RetryAfterSeconds: wholeSeconds(e.retryAfter),
	}
	for _, f := range e.fields {
		detail.Causes = append(detail.Causes, &podplanev1.FieldCause{Field: f.Path, Reason: f.Type, Message: f.Detail})
	}
	s := status.New(codeOf[kind], err.Error())
	if with, detailErr := s.WithDetails(detail); detailErr == nil {
		s = with
	}
	return s.Err()
}

// FromGRPC makes the error that a gRPC client's caller gets: the inverse of ToGRPC. A status without our details gets the kind of its code.
func FromGRPC(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err // translated already
	}
	carrier, ok := errors.AsType[grpcStatus](err)
	if !ok {
		return Wrap(KindOf(err), err)
	}
	s := carrier.GRPCStatus()
	e := &Error{kind: kindOfCode(s.Code()), err: &statusError{s}}
	d, ok := detailIn(s)
	if !ok {
		return e
	}
	if k, known := ParseKind(d.GetKind()); known && k != None {
		e.kind = k
	}
	e.reason = d.GetReason()
	e.object = splitObject(d.GetObjectKind(), d.GetObjectName())
	e.retryAfter = time.Duration(d.GetRetryAfterSeconds()) * time.Second
	for _, c := range d.GetCauses() {
		e.fields = append(e.fields, FieldError{Path: c.GetField(), Type: c.GetReason(), Detail: c.GetMessage()})
	}
	return e
}

// HasDetail says whether a gRPC error was made by ToGRPC on the other side; without one it is the transport's own, or a stranger's.
func HasDetail(err error) bool {
	s, ok := errors.AsType[grpcStatus](err)
	if !ok {
		return false
	}
	_, ok = detailIn(s.GRPCStatus())
	return ok
}

func detailIn(s *status.Status) (*podplanev1.ErrorDetail, bool) {
	if s.Code() == codes.OK {
		return nil, false
	}
	details := s.Details()
	i := slices.IndexFunc(details, func(d any) bool { _, ok := d.(*podplanev1.ErrorDetail); return ok })
	if i < 0 {
		return nil, false
	}
	return details[i].(*podplanev1.ErrorDetail), true
}

// statusError reads like the message alone, without gRPC's "rpc error: code = …", and stays a gRPC status for those who look.
type statusError struct{ s *status.Status }

func (e *statusError) Error() string { return e.s.Message() }

// GRPCStatus gives the status as it came.
func (e *statusError) GRPCStatus() *status.Status { return e.s }
