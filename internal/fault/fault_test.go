package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/fault"
)

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want fault.Kind
	}{
		{"nil", nil, fault.None},
		{"plain", errors.New("x"), fault.Internal},
		{"wrapped", fmt.Errorf("get: %w", fault.New(fault.NotFound, "no")), fault.NotFound},
		{"outermost wins", fault.New(fault.Unavailable, "no: %w", fault.New(fault.NotFound, "no")), fault.Unavailable},
		{"deadline", fmt.Errorf("x: %w", context.DeadlineExceeded), fault.DeadlineExceeded},
		{"canceled", context.Canceled, fault.Canceled},
		{"grpc", fmt.Errorf("x: %w", status.Error(codes.NotFound, "x")), fault.NotFound},
		{"grpc aborted", status.Error(codes.Aborted, "x"), fault.Conflict},
		{"grpc unknown", status.Error(codes.Unknown, "x"), fault.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fault.KindOf(c.err); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestInvalidateNamesFieldsWithoutValues(t *testing.T) {
	list := field.ErrorList{
		field.Required(field.NewPath("spec", "containers").Index(0).Child("name"), ""),
		field.Invalid(field.NewPath("spec", "x"), "s3cret", "must be short"),
		field.NotSupported(field.NewPath("spec", "restartPolicy"), "Often", []string{"Always", "Never"}),
		field.Invalid(field.NewPath("spec", "port"), 99999, "must be a port"),
		field.NotFound(field.NewPath("spec", "mount"), "data"),
	}
	err := fault.Invalidate(fault.Object{Resource: "Pod", Name: "a"}, list)
	want := `Pod "a" is invalid: [spec.containers[0].name: Required value, spec.x: Invalid value: must be short, ` +
		`spec.restartPolicy: Unsupported value: "Often": supported values: "Always", "Never", spec.port: Invalid value: 99999: must be a port, spec.mount: Not found: "data"]`
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	s := fault.ToStatus(fmt.Errorf("create: %w", err))
	if s.Code != 422 || s.Reason != metav1.StatusReasonInvalid || len(s.Details.Causes) != 5 {
		t.Fatalf("status %+v", s)
	}
	if c := s.Details.Causes[0]; c.Field != "spec.containers[0].name" || c.Type != metav1.CauseTypeFieldValueRequired {
		t.Errorf("cause %+v", c)
	}
	if fault.Invalidate(fault.Object{}, nil) != nil {
		t.Error("no findings must be no error")
	}
}

func TestStatus(t *testing.T) {
	for k := fault.Invalid; k <= fault.Canceled; k++ {
		err := fault.WithRetryAfter(fault.For(k, fault.Object{Resource: "pods", Name: "a", UID: "u"}, ""), 1500*time.Millisecond)
		s := fault.ToStatus(err)
		if s.Code < 400 || s.Message == "" || s.Status != metav1.StatusFailure {
			t.Errorf("%v: %+v", k, s)
		}
		if s.Details.RetryAfterSeconds != 2 {
			t.Errorf("%v: retry after %d", k, s.Details.RetryAfterSeconds)
		}
		if s.Message != err.Error() || s.Details.Name != "a" || s.Details.Kind != "pods" || string(s.Details.UID) != "u" {
			t.Errorf("%v: %+v, details %+v", k, s, s.Details)
		}
	}
	if s := fault.ToStatus(nil); s.Status != metav1.StatusSuccess || s.Code != 200 || s.Details != nil {
		t.Errorf("no error is %+v", s)
	}
}

func TestAmendKeepsKindAndFields(t *testing.T) {
	err := fault.Invalidate(fault.Object{Resource: "Pod", Name: "a"}, field.ErrorList{field.Required(field.NewPath("spec"), "")})
	err = fault.WithReason(fault.WithRetryAfter(err, time.Second), "Odd")
	if !fault.Is(err, fault.Invalid) || len(fault.Fields(err)) != 1 || fault.ReasonOf(err) != "Odd" || fault.RetryAfter(err) != time.Second {
		t.Errorf("%#v", err)
	}
	if fault.Wrap(fault.Internal, nil) != nil || fault.WithReason(nil, "x") != nil {
		t.Error("nil must stay nil")
	}
}

func TestGRPCRoundTrip(t *testing.T) {
	for k := fault.Invalid; k <= fault.Canceled; k++ {
		err := fault.New(k, "no")
		if k == fault.Invalid {
			err = fault.Invalidate(fault.Object{Resource: "deployments", Group: "apps", Name: "a"}, field.ErrorList{field.Required(field.NewPath("spec"), "")})
		}
		err = fault.WithReason(fault.WithRetryAfter(err, time.Second), "Odd")
		wire := fault.ToGRPC(fmt.Errorf("create: %w", err))
		if !fault.HasDetail(wire) {
			t.Fatalf("%v: no detail in %v", k, wire)
		}
		back := fmt.Errorf("call: %w", fault.FromGRPC(wire))
		if fault.KindOf(back) != k || fault.RetryAfter(back) != time.Second || fault.ReasonOf(back) != "Odd" || back.Error() != "call: create: "+err.Error() {
			t.Errorf("%v came back as %v: %v", k, fault.KindOf(back), back)
		}
		if k == fault.Invalid && (len(fault.Fields(back)) != 1 || fault.ObjectOf(back) != (fault.Object{Resource: "deployments", Group: "apps", Name: "a"})) {
			t.Errorf("lost: %+v %+v", fault.Fields(back), fault.ObjectOf(back))
		}
		if again := fault.ToGRPC(back); !fault.HasDetail(again) || fault.KindOf(fault.FromGRPC(again)) != k {
			t.Errorf("%v does not survive a second hop", k)
		}
	}
	stranger := status.Error(codes.NotFound, "gone")
	if got := fault.ToGRPC(stranger); status.Code(got) != codes.NotFound || fault.HasDetail(got) {
		t.Errorf("%v", got)
	}
	if got := fault.FromGRPC(stranger); !fault.Is(got, fault.NotFound) || got.Error() != "gone" {
		t.Errorf("%v", got)
	}
	if fault.ToGRPC(nil) != nil || fault.FromGRPC(nil) != nil {
		t.Error("nil must stay nil")
	}
}
