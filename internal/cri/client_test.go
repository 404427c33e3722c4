package cri_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

func TestDialRefusesWhatIsNoEndpoint(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"", "relative.sock", "tcp://127.0.0.1:1", "unix://host/path", "unix://"} {
		if _, err := cri.Dial(t.Context(), endpoint, cri.Options{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: error is %v, want kind Invalid", endpoint, err)
		}
	}
}

func TestRuntimeThatIsAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	client, err := cri.Dial(t.Context(), filepath.Join(t.TempDir(), "none.sock"), cri.Options{})
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Version(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("error is %v, want kind Unavailable", err)
	}
	stream, err := client.Events(t.Context())
	if err == nil {
		defer stream.Close()
		_, err = stream.Recv()
	}
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("events: error is %v, want kind Unavailable", err)
	}
}

func TestCreateAddsOwnershipLabelsAndKeepsTheCallersMap(t *testing.T) {
	t.Parallel()
	var got *runtimeapi.CreateContainerRequest
	client := dial(t, &server{createContainer: func(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
		got = r
		return &runtimeapi.CreateContainerResponse{ContainerId: "c1"}, nil
	}}, cri.Options{Node: "n1"})
	labels := map[string]string{"app": "web"}
	user := int64(7)
	id, err := client.CreateContainer(t.Context(), "s1",
		&cri.ContainerConfig{
			Name: "web", Attempt: 3, Labels: labels, StopSignal: "SIGUSR1", Env: []cri.EnvVar{{Name: "A", Value: "b"}},
			Mounts:   []pod.Mount{{ContainerPath: "/x", HostPath: "/y", ReadOnly: true, Propagation: pod.MountBidirectional}},
			Security: cri.ContainerSecurity{RunAsUser: &user, Namespaces: cri.Namespaces{PID: cri.NamespaceContainer}},
		},
		&cri.SandboxConfig{Name: "p", Namespace: "ns", UID: "u1"})
	if err != nil || id != "c1" {
		t.Fatalf("create: %q, %v", id, err)
	}
	want := map[string]string{
		"app": "web", pod.LabelNode: "n1", pod.LabelPodName: "p", pod.LabelPodNamespace: "ns", pod.LabelPodUID: "u1", pod.LabelContainerName: "web",
	}
	for k, v := range want {
		if got.GetConfig().GetLabels()[k] != v {
			t.Errorf("label %s is %q, want %q", k, got.GetConfig().GetLabels()[k], v)
		}
	}
	if len(got.GetConfig().GetLabels()) != len(want) || len(labels) != 1 {
		t.Errorf("labels are %v, the caller's %v", got.GetConfig().GetLabels(), labels)
	}
	c := got.GetConfig()
	if c.GetStopSignal() != runtimeapi.Signal_SIGUSR1 || c.GetMetadata().GetAttempt() != 3 || string(c.GetEnvs()[0].GetValue()) != "b" ||
		c.GetLinux().GetSecurityContext().GetRunAsUser().GetValue() != 7 ||
		c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER ||
		c.GetMounts()[0].GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL || !c.GetMounts()[0].GetReadonly() {
		t.Errorf("config is %v", c)
	}
	_, err = client.CreateContainer(t.Context(), "s1", &cri.ContainerConfig{Name: "web", StopSignal: "SIGFOO"}, &cri.SandboxConfig{})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("unknown signal: error is %v, want kind Invalid", err)
	}
}

func TestErrorsHaveKinds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want fault.Kind
	}{
		{status.Error(codes.NotFound, "no such image"), fault.NotFound},
		{status.Error(codes.Unavailable, "shutting down"), fault.Unavailable},
		{status.Error(codes.FailedPrecondition, `failed to reserve sandbox name "a": name "a" is reserved for "x"`), fault.AlreadyExists},
		{status.Error(codes.Unknown, "broken"), fault.Internal},
	} {
		client := dial(t, &server{runSandbox: func(context.Context, *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
			return nil, tt.err
		}}, cri.Options{})
		_, err := client.RunSandbox(t.Context(), &cri.SandboxConfig{Name: "p", Namespace: "ns"})
		if fault.KindOf(err) != tt.want {
			t.Errorf("%v became kind %v, want %v", tt.err, fault.KindOf(err), tt.want)
		}
		var call *cri.CallError
		if !errors.As(err, &call) || call.Target != "ns/p" || call.Op != "run_podsandbox" {
			t.Errorf("error is %#v", err)
		}
	}
}

func TestStopAndRemoveOfNothingSucceed(t *testing.T) {
	t.Parallel()
	var timeout int64
	client := dial(t, &server{stopContainer: func(_ context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
		timeout = r.GetTimeout()
		return nil, status.Error(codes.NotFound, "gone")
	}}, cri.Options{})
	if err := client.StopContainer(t.Context(), "c1", 1100*time.Millisecond); err != nil {
		t.Errorf("stop: %v", err)
	}
	if timeout != 2 {
		t.Errorf("timeout is %d s, want 2: rounded up", timeout)
	}
}

func TestHungCallEndsWithItsName(t *testing.T) {
	t.Parallel()
	client := dial(t, &server{runSandbox: func(ctx context.Context, _ *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, cri.Options{Timeouts: cri.Timeouts{Request: 20 * time.Millisecond}})
	_, err := client.RunSandbox(t.Context(), &cri.SandboxConfig{Name: "p", Namespace: "ns"})
	if !fault.Is(err, fault.DeadlineExceeded) || !strings.Contains(err.Error(), "run podsandbox ns/p") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err = client.RunSandbox(ctx, &cri.SandboxConfig{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want that of the caller's context", err)
	}
}

func TestStopHasItsGraceBesideTheTimeOfACall(t *testing.T) {
	t.Parallel()
	var asked []int64
	client := dial(t, &server{stopContainer: func(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
		asked = append(asked, r.GetTimeout())
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); !ok || left < 30*time.Second || left > 32*time.Second {
			t.Errorf("the call may take %s, want its grace period of 30 s and the second of a call", left)
		}
		return &runtimeapi.StopContainerResponse{}, nil
	}}, cri.Options{Timeouts: cri.Timeouts{Request: time.Second}})
	if err := client.StopContainer(t.Context(), "c1", 29100*time.Millisecond); err != nil || len(asked) != 1 || asked[0] != 30 {
		t.Errorf("asked for %v seconds, %v", asked, err)
	}
}

// lineChan takes lines of a log.
type lineChan chan []byte

func (l lineChan) Write(line []byte) (int, error) {
	l <- slices.Clone(line)
	return len(line), nil
}

func TestEachCallIsLogged(t *testing.T) {
	t.Parallel()
	lines := make(lineChan, 2)
	client := dial(t, &server{
		stopContainer: func(_ context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
			if r.GetContainerId() == "bad" {
				return nil, status.Error(codes.Internal, "no")
			}
			return &runtimeapi.StopContainerResponse{}, nil
		},
	}, cri.Options{Log: slog.New(slog.NewJSONHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	for _, id := range []string{"good", "bad"} {
		err := client.StopContainer(t.Context(), id, 0)
		if (err != nil) != (id == "bad") {
			t.Errorf("%s: %v", id, err)
		}
		var line map[string]any
		if err := json.Unmarshal(<-lines, &line); err != nil {
			t.Fatal(err)
		}
		_, failed := line["error"]
		if line["level"] != "DEBUG" || line["operation"] != "stop_container" || line["container.id"] != id || failed != (id == "bad") {
			t.Errorf("%s: the line is %v", id, line)
		}
	}
}

func TestSlowCallIsNamedWhileItGoesOn(t *testing.T) {
	t.Parallel()
	lines := make(lineChan, 2)
	client := dial(t, &server{
		runSandbox: func(ctx context.Context, _ *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		stopContainer: func(context.Context, *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
			return &runtimeapi.StopContainerResponse{}, nil
		},
	}, cri.Options{Timeouts: cri.Timeouts{Slow: 20 * time.Millisecond}, Log: slog.New(slog.NewJSONHandler(lines, nil))})
	if err := client.StopContainer(t.Context(), "quick", time.Minute); err != nil {
		t.Fatalf("stop: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := client.RunSandbox(ctx, &cri.SandboxConfig{Name: "p", Namespace: "ns", UID: "u1"})
		done <- err
	}()
	var line map[string]any
	if err := json.Unmarshal(<-lines, &line); err != nil {
		t.Fatal(err)
	}
	if line["level"] != "WARN" || line["operation"] != "run_podsandbox" || line["k8s.pod.uid"] != "u1" || line["took"] != float64(20*time.Millisecond) {
		t.Errorf("the line is %v", line)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want that of the caller's context", err)
	}
}

func TestPodStatusNamesTheHungOneAndReturnsTheOthers(t *testing.T) {
	t.Parallel()
	labels := map[string]string{pod.LabelPodUID: "u1", pod.LabelPodName: "p", pod.LabelPodNamespace: "ns"}
	s := &server{containerStatus: func(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
		switch r.GetContainerId() {
		case "hung":
			<-ctx.Done()
			return nil, ctx.Err()
		case "removed":
			return nil, status.Error(codes.NotFound, "gone")
		}
		return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
			Id: r.GetContainerId(), Metadata: &runtimeapi.ContainerMetadata{Name: r.GetContainerId()}, Labels: labels,
			State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: 3, FinishedAt: 5,
		}}, nil
	}}
	for _, id := range []string{"a", "hung", "removed", "b"} {
		s.containers = append(s.containers, &runtimeapi.Container{Id: id, PodSandboxId: "s1", Labels: labels})
	}
	client := dial(t, s, cri.Options{Node: "n1", Timeouts: cri.Timeouts{Inspect: time.Second}})
	p, err := client.PodStatus(t.Context(), "u1")
	var inspect *cri.InspectError
	if !errors.As(err, &inspect) || len(inspect.Failed) != 1 || !strings.Contains(err.Error(), "hung") || !fault.Is(err, fault.DeadlineExceeded) {
		t.Fatalf("error is %v", err)
	}
	if len(p.Containers) != 2 || p.Newest("a") == nil || p.Newest("b") == nil || p.Newest("a").SandboxID != "s1" || p.Newest("a").ExitCode != 3 {
		t.Errorf("containers are %+v", p.Containers)
	}
	if p.Name != "p" || p.Namespace != "ns" || p.ObservedAt.IsZero() {
		t.Errorf("pod is %+v", p)
	}
	for _, selector := range []map[string]string{s.sandboxFilter.GetLabelSelector(), s.containerFilter.GetLabelSelector()} {
		if selector[pod.LabelNode] != "n1" || selector[pod.LabelPodUID] != "u1" {
			t.Errorf("the runtime was asked for %v", selector)
		}
	}
}

func TestExecSyncTellsApart(t *testing.T) {
	t.Parallel()
	client := dial(t, &server{execSync: execCases}, cri.Options{})
	ctx := t.Context()
	result, err := client.ExecSync(ctx, "c", []string{"exit3"}, time.Second)
	var exit *cri.ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || string(result.Stdout) != "out" || result.ExitCode != 3 {
		t.Errorf("exit3: %+v, %v", result, err)
	}
	result, err = client.ExecSync(ctx, "c", []string{"big"}, 0)
	if err != nil || len(result.Stdout) != cri.MaxExecOutput || !result.StdoutTruncated || result.StderrTruncated {
		t.Errorf("big: %d bytes, %v", len(result.Stdout), err)
	}
	var timeout *cri.ExecTimeoutError
	if _, err = client.ExecSync(ctx, "c", []string{"slow"}, time.Second); !errors.As(err, &timeout) || !fault.Is(err, fault.DeadlineExceeded) {
		t.Errorf("slow: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err = client.ExecSync(short, "c", []string{"slow"}, time.Second); errors.As(err, &timeout) || !fault.Is(err, fault.DeadlineExceeded) {
		t.Errorf("slow with a short context: %v", err)
	}
	if _, err = client.ExecSync(ctx, "c", []string{"gone"}, time.Second); !fault.Is(err, fault.NotFound) {
		t.Errorf("gone: %v", err)
	}
}

func execCases(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	switch r.GetCmd()[0] {
	case "exit3":
		return &runtimeapi.ExecSyncResponse{Stdout: []byte("out"), ExitCode: 3}, nil
	case "big":
		return &runtimeapi.ExecSyncResponse{Stdout: make([]byte, cri.MaxExecOutput+1), Stderr: []byte("e")}, nil
	case "slow":
		timer := time.NewTimer(time.Duration(r.GetTimeout()) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil, status.Error(codes.DeadlineExceeded, "timeout exceeded")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, status.Error(codes.NotFound, "no container")
}

func TestPullErrorsHaveReasonsAndNoSecrets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		reason string
		kind   fault.Kind
	}{
		{status.Error(codes.NotFound, "not found"), cri.ReasonErrImagePull, fault.NotFound},
		{status.Error(codes.Unknown, "RegistryUnavailable: 503"), cri.ReasonRegistryUnavailable, fault.Internal},
		{status.Error(codes.Unknown, "SignatureValidationFailed: bad"), cri.ReasonSignatureValidationFailed, fault.Internal},
		{status.Error(codes.InvalidArgument, "bad reference"), cri.ReasonInvalidImageName, fault.Invalid},
	} {
		client := dial(t, &server{pullImage: func(context.Context, *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
			return nil, tt.err
		}}, cri.Options{})
		_, err := client.PullImage(t.Context(), cri.ImageSpec{Image: "x:1"}, &cri.AuthConfig{Username: "u", Password: "hunter2"}, nil)
		var image *cri.ImageError
		if !errors.As(err, &image) || image.Reason != tt.reason || fault.KindOf(err) != tt.kind {
			t.Errorf("%v became %#v", tt.err, err)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	client := dial(t, &server{}, cri.Options{})
	if _, err := client.ImageStatus(t.Context(), cri.ImageSpec{Image: "x"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("status of an absent image: %v", err)
	}
}

func TestEventsOfOthersAreLeftOut(t *testing.T) {
	t.Parallel()
	sandbox := func(node string) *runtimeapi.PodSandboxStatus {
		return &runtimeapi.PodSandboxStatus{Id: "s-" + node, Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u"}, Labels: map[string]string{pod.LabelNode: node}}
	}
	client := dial(t, &server{events: []*runtimeapi.ContainerEventResponse{
		{ContainerId: "a", PodSandboxStatus: sandbox("other")},
		{ContainerId: "s-n1", PodSandboxStatus: sandbox("n1"), ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, CreatedAt: 9},
		{ContainerId: "c", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT},
	}}, cri.Options{Node: "n1"})
	stream, err := client.Events(t.Context())
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	defer stream.Close()
	e, err := stream.Recv()
	if err != nil || e.Type != cri.EventStarted || !e.IsSandbox() || e.PodUID() != "u" || !e.At.Equal(time.Unix(0, 9)) {
		t.Errorf("first event is %+v, %v", e, err)
	}
	if e, err = stream.Recv(); err != nil || e.Type != cri.EventDeleted || e.Sandbox != nil || e.ID != "c" {
		t.Errorf("second event is %+v, %v", e, err)
	}
	if _, err = stream.Recv(); err == nil {
		t.Error("the stream did not end")
	}
}

func TestMetricsCountUnderTheKubeletsNames(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	metrics, err := cri.NewMetrics(registry)
	if err != nil {
		t.Fatalf("metrics: %v", err)
	}
	client := dial(t, &server{runSandbox: func(context.Context, *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
		return nil, status.Error(codes.Internal, "broken")
	}}, cri.Options{Observer: metrics})
	if _, err := client.RunSandbox(t.Context(), &cri.SandboxConfig{RuntimeHandler: "h"}); err == nil {
		t.Fatal("no error")
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatalf("gather: %v", err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName()+"/"+f.GetMetric()[0].GetLabel()[0].GetValue())
	}
	want := "kubelet_run_podsandbox_duration_seconds/h kubelet_run_podsandbox_errors_total/h kubelet_runtime_operations_duration_seconds/run_podsandbox " +
		"kubelet_runtime_operations_errors_total/run_podsandbox kubelet_runtime_operations_total/run_podsandbox"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("metrics are\n%s\nwant\n%s", got, want)
	}
	if _, err := cri.NewMetrics(registry); err == nil {
		t.Error("registering twice was no error")
	}
}
