package fault

import (
	"google.golang.org/grpc/status"
)

// ToGRPC makes the error that a gRPC handler returns.
func ToGRPC(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codeOf[KindOf(err)], err.Error())
}

// FromGRPC makes the error that a gRPC client's caller gets.
func FromGRPC(err error) error {
	if err == nil {
		return nil
	}
	return Wrap(KindOf(err), err)
}
