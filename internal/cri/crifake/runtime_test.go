package crifake_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// start runs a pod with one container and returns the IDs.
func start(t *testing.T, r *crifake.Runtime) (sandbox, container string) {
	t.Helper()
	r.AddImage("app")
	config := &cri.SandboxConfig{Name: "p", Namespace: "ns", UID: "u1"}
	sandbox, err := r.RunSandbox(t.Context(), config)
	if err != nil {
		t.Fatalf("run sandbox: %v", err)
	}
	container, err = r.CreateContainer(t.Context(), sandbox, &cri.ContainerConfig{Name: "c", Image: cri.ImageSpec{Image: "app"}}, config)
	if err != nil {
		t.Fatalf("create container: %v", err)
	}
	if err := r.StartContainer(t.Context(), container); err != nil {
		t.Fatalf("start container: %v", err)
	}
	return sandbox, container
}

func status(t *testing.T, r *crifake.Runtime, id string) pod.Container {
	t.Helper()
	c, err := r.ContainerStatus(t.Context(), id)
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	return c
}

func TestContainersEndByTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := crifake.New(crifake.Options{Behavior: func(pod.Container, *cri.ContainerConfig) crifake.Behavior {
			return crifake.Behavior{Exits: true, After: time.Hour, ExitCode: 2, Reason: "OOMKilled"}
		}})
		_, id := start(t, r)
		time.Sleep(time.Hour - time.Nanosecond)
		synctest.Wait()
		if c := status(t, r, id); c.State != pod.ContainerRunning {
			t.Errorf("before its end the container is %+v", c)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		c := status(t, r, id)
		if c.State != pod.ContainerExited || c.ExitCode != 2 || c.Reason != "OOMKilled" || c.FinishedAt.Sub(c.StartedAt) != time.Hour {
			t.Errorf("at its end the container is %+v", c)
		}
	})
}

func TestStopWaitsForTheContainerOrTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := crifake.New(crifake.Options{Behavior: func(pod.Container, *cri.ContainerConfig) crifake.Behavior {
			return crifake.Behavior{StopTakes: 5 * time.Second, StopCode: 9}
		}})
		_, id := start(t, r)
		begin := time.Now()
		if err := r.StopContainer(t.Context(), id, 2*time.Second); err != nil {
			t.Fatalf("stop: %v", err)
		}
		if c := status(t, r, id); c.ExitCode != 137 || time.Since(begin) != 2*time.Second {
			t.Errorf("after %v the container is %+v", time.Since(begin), c)
		}
		r2 := crifake.New(crifake.Options{Behavior: func(pod.Container, *cri.ContainerConfig) crifake.Behavior {
			return crifake.Behavior{StopTakes: 5 * time.Second, StopCode: 9}
		}})
		_, id = start(t, r2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r2.StopContainer(ctx, id, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stop with a short context: %v", err)
		}
		begin = time.Now()
		if err := r2.StopContainer(t.Context(), id, time.Minute); err != nil || time.Since(begin) != 4*time.Second {
			t.Errorf("second stop took %v, %v: the signal is sent once", time.Since(begin), err)
		}
		if c := status(t, r2, id); c.ExitCode != 9 {
			t.Errorf("container is %+v", c)
		}
	})
}

func TestInjectedErrorsAndHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := crifake.New(crifake.Options{})
		broken := fault.New(fault.Internal, "broken")
		r.Fail("run_podsandbox", "ns/p", 1, broken)
		if _, err := r.RunSandbox(t.Context(), &cri.SandboxConfig{Name: "p", Namespace: "ns"}); !errors.Is(err, broken) {
			t.Errorf("run: %v", err)
		}
		_, id := start(t, r) // only once

		stop := r.Fail("container_status", "", 0, broken)
		for range 3 {
			if _, err := r.ContainerStatus(t.Context(), id); !errors.Is(err, broken) {
				t.Errorf("status: %v", err)
			}
		}
		stop()
		status(t, r, id)

		release := r.Hang("container_status", id)
		begin := time.Now()
		p, err := r.PodStatus(t.Context(), "u1")
		var inspect *cri.InspectError
		if !errors.As(err, &inspect) || !fault.Is(err, fault.DeadlineExceeded) || !strings.Contains(err.Error(), id) || time.Since(begin) != 5*time.Second {
			t.Errorf("status of the pod after %v: %v", time.Since(begin), err)
		}
		if len(p.Sandboxes) != 1 || len(p.Containers) != 0 {
			t.Errorf("pod is %+v", p)
		}
		done := make(chan error)
		go func() {
			_, err := r.ContainerStatus(t.Context(), id)
			done <- err
		}()
		synctest.Wait()
		release()
		release()
		if err := <-done; err != nil {
			t.Errorf("released: %v", err)
		}

		defer r.Delay("version", "", time.Minute)()
		begin = time.Now()
		if _, err := r.Version(t.Context()); err != nil || time.Since(begin) != time.Minute {
			t.Errorf("delayed call: %v after %v", err, time.Since(begin))
		}
	})
}

func TestDownRuntimeKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	r := crifake.New(crifake.Options{})
	_, id := start(t, r)
	stream, err := r.Events(t.Context())
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	r.SetDown(true)
	if _, err := r.ContainerStatus(t.Context(), id); !fault.Is(err, fault.Unavailable) {
		t.Errorf("status: %v", err)
	}
	if _, err := stream.Recv(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("receive: %v", err)
	}
	stream.Close()
	r.Exit(id, 1, "")
	r.SetDown(false)
	if c := status(t, r, id); c.State != pod.ContainerExited || c.Reason != "Error" {
		t.Errorf("container is %+v", c)
	}
	r.Exit(id, 5, "") // ended already
	if c := status(t, r, id); c.ExitCode != 1 {
		t.Errorf("container is %+v", c)
	}
}

func TestEventsCanBeLostAndBroken(t *testing.T) {
	t.Parallel()
	r := crifake.New(crifake.Options{Node: "n1"})
	stream, err := r.Events(t.Context())
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	defer stream.Close()
	r.DropEvents(true)
	sandbox, id := start(t, r)
	r.DropEvents(false)
	r.Exit(id, 3, "")
	r.CrashSandbox(sandbox)
	if _, err := r.For("n2").RunSandbox(t.Context(), &cri.SandboxConfig{Name: "foreign"}); err != nil {
		t.Fatalf("run: %v", err)
	}
	if got := r.Streams(); got != 1 {
		t.Errorf("%d streams are open", got)
	}
	r.BreakStreams(nil)
	var got []string
	for {
		e, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("the stream ended with %v", err)
			}
			break
		}
		got = append(got, e.ID+" "+e.Type.String())
	}
	if want := []string{id + " Stopped", sandbox + " Stopped"}; !slices.Equal(got, want) {
		t.Errorf("events are %v, want %v", got, want)
	}
	if got := r.Streams(); got != 0 {
		t.Errorf("%d streams are open", got)
	}
}

func TestCallsAreLogged(t *testing.T) {
	t.Parallel()
	r := crifake.New(crifake.Options{})
	_, id := start(t, r)
	var got []string
	for _, c := range r.Calls("run_podsandbox", "create_container", "start_container") {
		got = append(got, c.Operation+" "+c.Target)
	}
	if want := []string{"run_podsandbox ns/p", "create_container c", "start_container " + id}; !slices.Equal(got, want) {
		t.Errorf("calls are %v, want %v", got, want)
	}
	if len(r.Calls()) != 3 {
		t.Errorf("all calls are %v", r.Calls())
	}
	r.ForgetCalls()
	if len(r.Calls()) != 0 {
		t.Errorf("forgotten calls are %v", r.Calls())
	}
}

func TestPullsNeedWhatIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := crifake.New(crifake.Options{})
		r.AddRemoteImage("private", crifake.RemoteImage{Auth: &cri.AuthConfig{Username: "u", Password: "p"}, Takes: time.Minute})
		image := cri.ImageSpec{Image: "docker.io/library/private:latest"}
		if _, err := r.PullImage(t.Context(), image, nil, nil); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("without credentials: %v", err)
		}
		begin := time.Now()
		ref, err := r.PullImage(t.Context(), image, &cri.AuthConfig{Username: "u", Password: "p"}, nil)
		if err != nil || time.Since(begin) != time.Minute {
			t.Errorf("with credentials: %v after %v", err, time.Since(begin))
		}
		for _, name := range []string{"private", ref} {
			if _, err := r.ImageStatus(t.Context(), cri.ImageSpec{Image: name}); err != nil {
				t.Errorf("status of %s: %v", name, err)
			}
		}
		anything := crifake.New(crifake.Options{AnyImage: true})
		if _, err := anything.PullImage(t.Context(), cri.ImageSpec{Image: "reg.example/x/y@sha256:" + strings.Repeat("a", 64)}, nil, nil); err != nil {
			t.Errorf("any image: %v", err)
		}
	})
}

func TestReportsCanBeSet(t *testing.T) {
	t.Parallel()
	r := crifake.New(crifake.Options{})
	r.SetCondition(cri.Condition{Type: cri.ConditionNetworkReady, Reason: "NetworkPluginNotReady"})
	s, err := r.Status(t.Context())
	if c := s.Condition(cri.ConditionNetworkReady); err != nil || c.Status || c.Reason != "NetworkPluginNotReady" {
		t.Errorf("condition is %+v, %v", c, err)
	}
	start(t, r)
	used := uint64(5 << 20)
	r.SetUsage(func(pod.Container) cri.ContainerStats {
		return cri.ContainerStats{CPU: &cri.CPUUsage{UsedNanos: 7}, Memory: &cri.MemoryUsage{WorkingSet: &used}}
	})
	stats, err := r.ListPodStats(t.Context(), cri.Filter{})
	if err != nil || len(stats) != 1 || *stats[0].Memory.WorkingSet != used || stats[0].CPU.UsedNanos != 7 || stats[0].Processes.Count != 2 {
		t.Errorf("stats are %+v, %v", stats, err)
	}
	r.SetImageFsInfo(cri.ImageFsInfo{Images: []cri.FilesystemUsage{{Mountpoint: "/x"}}})
	if info, err := r.ImageFsInfo(t.Context()); err != nil || info.Images[0].Mountpoint != "/x" {
		t.Errorf("file systems are %+v, %v", info, err)
	}
}
