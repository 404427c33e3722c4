package cri_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/testkit"
)

// TestPullErrorsOfContainerd says which kinds a real runtime's errors of a real registry become.
func TestPullErrorsOfContainerd(t *testing.T) {
	node := testkit.Containerd(t)
	client := node.Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const password = "correct horse"
	defer node.Registry.SetRule("busybox", nil)
	pull := func(rule *testkit.Rule, auth *cri.AuthConfig) error {
		node.Registry.SetRule("busybox", rule)
		image := cri.ImageSpec{Image: node.Registry.Name("busybox:1")}
		if err := client.RemoveImage(ctx, image); err != nil {
			t.Fatalf("remove: %v", err)
		}
		_, err := client.PullImage(ctx, image, auth, nil)
		return err
	}
	private := &testkit.Rule{User: "u", Password: password}
	if err := pull(private, &cri.AuthConfig{Username: "u", Password: password}); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	for _, test := range []struct {
		name string
		rule *testkit.Rule
		auth *cri.AuthConfig
		kind fault.Kind
	}{
		{"without credentials", private, nil, fault.Unauthenticated},
		{"with wrong credentials", private, &cri.AuthConfig{Username: "u", Password: "s3cret"}, fault.Unauthenticated},
		{"forbidden", &testkit.Rule{Status: 403}, nil, fault.PermissionDenied},
		{"too many", &testkit.Rule{Status: 429}, nil, fault.ResourceExhausted},
		{"broken", &testkit.Rule{Status: 503}, nil, fault.Unavailable},
	} {
		err := pull(test.rule, test.auth)
		var image *cri.ImageError
		if !errors.As(err, &image) || fault.KindOf(err) != test.kind {
			t.Errorf("%s: error is %v (kind %v), want kind %v", test.name, err, fault.KindOf(err), test.kind)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error tells the password: %v", test.name, err)
		}
	}
	_, err := client.PullImage(ctx, cri.ImageSpec{Image: "127.0.0.1:1/busybox:1"}, nil, nil)
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("nobody listens: error is %v (kind %v), want kind Unavailable", err, fault.KindOf(err))
	}
}
