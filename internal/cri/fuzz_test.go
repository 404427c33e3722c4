package cri

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FuzzFromEvent: whatever a runtime sends, the conversion neither panics nor mixes sandboxes up.
func FuzzFromEvent(f *testing.F) {
	seed, err := proto.Marshal(&runtimeapi.ContainerEventResponse{
		ContainerId: "c", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, CreatedAt: 1,
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: "s", Network: &runtimeapi.PodSandboxNetworkStatus{
			Ip: "192.0.2.1", AdditionalIps: []*runtimeapi.PodIP{{Ip: "2001:db8::1"}},
		}},
		ContainersStatuses: []*runtimeapi.ContainerStatus{{Id: "c", State: 9, Mounts: []*runtimeapi.Mount{{}}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, wire []byte) {
		var e runtimeapi.ContainerEventResponse
		if proto.Unmarshal(wire, &e) != nil {
			return
		}
		event := fromEvent(&e)
		if event.ID != e.GetContainerId() || (event.Sandbox == nil) != (e.GetPodSandboxStatus() == nil) ||
			len(event.Containers) != len(e.GetContainersStatuses()) {
			t.Errorf("%v became %+v", &e, event)
		}
		for _, c := range event.Containers {
			if c.SandboxID != e.GetPodSandboxStatus().GetId() || c.State.String() == "" {
				t.Errorf("%v became %+v", &e, c)
			}
		}
		_ = event.Type.String()
	})
}

// FuzzDialTarget: what is taken for an endpoint is a socket's absolute path.
func FuzzDialTarget(f *testing.F) {
	for _, s := range []string{"unix:///run/containerd/containerd.sock", "/run/x.sock", "unix://h/x", "tcp://h:1", "", "unix:///%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		target, err := dialTarget(endpoint)
		if err == nil && !strings.HasPrefix(target, "unix:///") {
			t.Errorf("%q became %q", endpoint, target)
		}
	})
}
