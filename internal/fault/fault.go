package fault

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Error is an error with a kind and, where known, what it is about. Make one with New, For or Invalidate; read it with KindOf, Fields,
// ObjectOf and RetryAfter, which see through wrapping.
type Error struct {
	kind       Kind
	err        error
	reason     string
	object     Object
	fields     []FieldError
	retryAfter time.Duration
}

// Object names what an error is about. Resource is the plural lower-case resource name ("pods") or, as Kubernetes does it for invalid
// objects, the kind ("Pod").
type Object struct {
	Group, Resource, Namespace, Name, UID string
}

// FieldError is one broken rule of an invalid object.
type FieldError struct {
	// Path is the field's path, as in spec.containers[0].name.
	Path string
	// Type is Kubernetes' name for what is wrong: FieldValueRequired, FieldValueInvalid, FieldValueNotSupported…
	Type string
	// Detail says what is wrong and what is allowed, without the value.
	Detail string
}

// New makes an error of this kind. The format works as in fmt.Errorf: a %w keeps the cause, and what it says about objects, fields and
// time to retry, reachable.
func New(k Kind, format string, args ...any) error {
	e := &Error{kind: k, err: fmt.Errorf(format, args...)}
	e.inherit(e.err)
	return e
}

// Wrap gives err another kind without changing its words. Wrap of nil is nil.
func Wrap(k Kind, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{kind: k, err: err}
	e.inherit(err)
	return e
}

// For makes an error about one object. Without a format the message is the one that Kubernetes would use: pods "a" not found.
func For(k Kind, o Object, format string, args ...any) error {
	e := &Error{kind: k, object: o}
	if format == "" {
		e.err = errors.New(defaultMessage(k, o))
		return e
	}
	e.err = fmt.Errorf(format, args...)
	e.inherit(e.err)
	e.object = o
	return e
}

// Invalidate turns the findings of a validation into one error of kind Invalid, or nil when there are none.
func Invalidate(o Object, list field.ErrorList) error {
	if len(list) == 0 {
		return nil
	}
	e := &Error{kind: Invalid, object: o, fields: make([]FieldError, 0, len(list))}
	for _, f := range list {
		e.fields = append(e.fields, FieldError{Path: f.Field, Type: string(f.Type), Detail: detailOf(f)})
	}
	e.err = errors.New(invalidMessage(o, e.fields))
	return e
}

// WithRetryAfter says how long to wait before trying again. It keeps the kind of err.
func WithRetryAfter(err error, d time.Duration) error {
	return amend(err, func(e *Error) { e.retryAfter = d })
}

// WithReason attaches a CamelCase word for machines that is finer than the kind (it becomes the Status' reason).
func WithReason(err error, reason string) error {
	return amend(err, func(e *Error) { e.reason = reason })
}

// Error gives the message.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.err }

// Fields gives the field errors of err, if it has any.
func Fields(err error) []FieldError {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.fields
	}
	return nil
}

// ObjectOf gives what err is about; the zero Object when nobody said.
func ObjectOf(err error) Object {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.object
	}
	return Object{}
}

// RetryAfter gives the time to wait before another try; 0 when nobody said.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.retryAfter
	}
	return 0
}

// ReasonOf gives the reason set by WithReason.
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.reason
	}
	return ""
}

// inherit takes over what the cause knows.
func (e *Error) inherit(cause error) {
	c, ok := errors.AsType[*Error](cause)
	if !ok {
		return
	}
	e.object, e.retryAfter = c.object, c.retryAfter
	if e.kind == c.kind {
		e.fields, e.reason = c.fields, c.reason
	}
}

func amend(err error, set func(*Error)) error {
	if err == nil {
		return nil
	}
	e := &Error{kind: KindOf(err), err: err}
	e.inherit(err)
	set(e)
	return e
}
