package cri

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

// CallError is an error of one call to the runtime. It says what was asked of what; its kind (package fault) says what
// it means. Kind DeadlineExceeded: the runtime did not answer in time, and what was asked may have happened or may
// still happen. When the caller's own context ended, errors.Is finds the context's error in it.
type CallError struct {
	// Op is the operation, as in the metrics: run_podsandbox, stop_container…
	Op string
	// Target is the ID, the image or the name that the call was about; empty when it was about the whole runtime.
	Target string
	// After is how long the call took.
	After time.Duration
	// Err is the runtime's answer, with a kind.
	Err error
}

// Error returns the operation in words, its target and the runtime's message.
func (e *CallError) Error() string {
	op := strings.ReplaceAll(e.Op, "_", " ")
	if e.Target == "" {
		return op + ": " + e.Err.Error()
	}
	return op + " " + e.Target + ": " + e.Err.Error()
}

// Unwrap returns the runtime's answer.
func (e *CallError) Unwrap() error { return e.Err }

// InspectError names the sandboxes and containers of a pod whose status could not be read.
type InspectError struct {
	PodUID string
	// Failed has one error for each. They are *CallError: Target is the ID.
	Failed []error
}

// Error names the pod and what could not be read.
func (e *InspectError) Error() string {
	return fmt.Sprintf("inspect pod %s: %v", e.PodUID, errors.Join(e.Failed...))
}

// Unwrap returns the errors.
func (e *InspectError) Unwrap() []error { return e.Failed }

// ExitError says that a command ended with a code other than 0.
type ExitError struct{ Code int32 }

// Error names the code.
func (e *ExitError) Error() string { return fmt.Sprintf("command ended with exit code %d", e.Code) }

// ExecTimeoutError says that a command did not end in time and was killed. Its kind is DeadlineExceeded.
type ExecTimeoutError struct {
	Timeout time.Duration
}

// Error names the timeout.
func (e *ExecTimeoutError) Error() string {
	return fmt.Sprintf("command did not end within %s", e.Timeout)
}

// Unwrap returns an error of kind DeadlineExceeded.
func (e *ExecTimeoutError) Unwrap() error { return errExecTimeout }

var errExecTimeout = fault.New(fault.DeadlineExceeded, "exec timed out")

// Reasons of an [ImageError], which are also the waiting reasons of containers.
const (
	ReasonErrImagePull              = "ErrImagePull"
	ReasonRegistryUnavailable       = "RegistryUnavailable"
	ReasonSignatureValidationFailed = "SignatureValidationFailed"
	ReasonInvalidImageName          = "InvalidImageName"
)

// ImageError says that an image could not be pulled.
type ImageError struct {
	Image string
	// Reason is the waiting reason that fits.
	Reason string
	// Err is the *CallError: kind NotFound (no such image or tag), Unauthenticated or PermissionDenied (credentials),
	// Unavailable (registry or runtime away), Invalid (not a reference) or Internal.
	Err error
}

// Error returns the runtime's message.
func (e *ImageError) Error() string { return e.Err.Error() }

// Unwrap returns the *CallError.
func (e *ImageError) Unwrap() error { return e.Err }
