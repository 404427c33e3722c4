package cri_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

// fill sets every field of a plain value to something that is not zero.
func fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v"))
	case reflect.String:
		v.SetString("SIGTERM")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	default:
		panic(fmt.Sprintf("fill: %v", v.Type()))
	}
}

// unset lists the fields of a message that are not set, however deep.
func unset(m protoreflect.Message, path string) []string {
	var paths []string
	for fields, i := m.Descriptor().Fields(), 0; i < fields.Len(); i++ {
		f := fields.Get(i)
		at := strings.TrimPrefix(path+"."+string(f.Name()), ".")
		switch {
		case !m.Has(f):
			paths = append(paths, at)
		case f.IsMap():
		case f.Message() != nil && f.IsList():
			paths = append(paths, unset(m.Get(f).List().Get(0).Message(), at)...)
		case f.Message() != nil:
			paths = append(paths, unset(m.Get(f).Message(), at)...)
		}
	}
	return paths
}

// TestConfigsReachTheRuntimeWhole fails when CRI has a field that a config has no way to set, or a conversion forgets one.
func TestConfigsReachTheRuntimeWhole(t *testing.T) {
	t.Parallel()
	var sandboxReq *runtimeapi.RunPodSandboxRequest
	var containerReq *runtimeapi.CreateContainerRequest
	client := dial(t, &server{
		runSandbox: func(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
			sandboxReq = r
			return &runtimeapi.RunPodSandboxResponse{}, nil
		},
		createContainer: func(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
			containerReq = r
			return &runtimeapi.CreateContainerResponse{}, nil
		},
	}, cri.Options{})
	var sandbox cri.SandboxConfig
	fill(reflect.ValueOf(&sandbox).Elem())
	var container cri.ContainerConfig
	fill(reflect.ValueOf(&container).Elem())
	if _, err := client.RunSandbox(t.Context(), &sandbox); err != nil {
		t.Fatalf("run: %v", err)
	}
	if _, err := client.CreateContainer(t.Context(), "s1", &container, &sandbox); err != nil {
		t.Fatalf("create: %v", err)
	}
	// Only deprecated fields, those of Windows, and values that are 0 on the wire (a user namespace's mode POD; names of
	// images that only the runtime fills in) are left.
	leftOut := []string{"windows", "seccomp_profile_path", "apparmor_profile", "userns_options.mode", "image.image_ref", "mounts.image."}
	check := func(paths []string) {
		for _, path := range paths {
			if !slices.ContainsFunc(leftOut, func(s string) bool { return strings.Contains(path, s) }) {
				t.Errorf("%s does not reach the runtime", path)
			}
		}
	}
	check(unset(sandboxReq.ProtoReflect(), ""))
	check(unset(containerReq.ProtoReflect(), ""))
}

// set fills every field of a message.
func set(m protoreflect.Message) {
	for fields, i := m.Descriptor().Fields(), 0; i < fields.Len(); i++ {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("v"))
		case f.IsList() && f.Message() != nil:
			set(m.Mutable(f).List().AppendMutable().Message())
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f))
		case f.Message() != nil:
			set(m.Mutable(f).Message())
		default:
			m.Set(f, scalar(f))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1)
	default:
		panic("scalar: " + f.Kind().String())
	}
}

// zeros lists the fields of a plain value that are zero, however deep.
func zeros(v reflect.Value, path string) []string {
	if v.IsZero() {
		return []string{path}
	}
	switch v.Kind() {
	case reflect.Pointer:
		return zeros(v.Elem(), path)
	case reflect.Slice:
		return zeros(v.Index(0), path)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return nil
		}
		var paths []string
		for i := range v.NumField() {
			paths = append(paths, zeros(v.Field(i), path+"."+v.Type().Field(i).Name)...)
		}
		return paths
	}
	return nil
}

// TestReportsArriveWhole fails when a conversion forgets a field of what the runtime reports.
func TestReportsArriveWhole(t *testing.T) {
	t.Parallel()
	e := &runtimeapi.ContainerEventResponse{}
	set(e.ProtoReflect())
	e.PodSandboxStatus.State = runtimeapi.PodSandboxState_SANDBOX_READY
	e.ContainersStatuses[0].Labels = map[string]string{pod.LabelPodUID: "u", pod.LabelPodName: "p", pod.LabelPodNamespace: "ns"}
	hostNetwork := &runtimeapi.ContainerEventResponse{PodSandboxStatus: &runtimeapi.PodSandboxStatus{
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "192.0.2.1"},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{
			Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
		}}},
	}}
	client := dial(t, &server{events: []*runtimeapi.ContainerEventResponse{e, hostNetwork}}, cri.Options{})
	stream, err := client.Events(t.Context())
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	defer stream.Close()
	event, err := stream.Recv()
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	want := []string{"Event.Sandbox.HostNetwork", "Event.Sandbox.HostPID", "Event.Sandbox.HostIPC"}
	if got := zeros(reflect.ValueOf(event), "Event"); !slices.Equal(got, want) {
		t.Errorf("not converted: %v, want only %v", got, want)
	}
	if event, err = stream.Recv(); err != nil || !event.Sandbox.HostNetwork || !event.Sandbox.HostPID || !event.Sandbox.HostIPC || event.Sandbox.IPs != nil {
		t.Errorf("sandbox is %+v, %v", event.Sandbox, err)
	}
}

// TestStatsArriveWhole is the same for statistics.
func TestStatsArriveWhole(t *testing.T) {
	t.Parallel()
	s := &runtimeapi.PodSandboxStats{}
	set(s.ProtoReflect())
	s.Linux.Containers[0].Attributes.Labels = map[string]string{pod.LabelPodUID: "u"}
	client := dial(t, &server{stats: s}, cri.Options{})
	stats, err := client.ListPodStats(t.Context(), cri.Filter{})
	if err != nil || len(stats) != 1 {
		t.Fatalf("stats: %v, %v", stats, err)
	}
	if got := zeros(reflect.ValueOf(stats[0]), "Stats"); len(got) != 0 {
		t.Errorf("not converted: %v", got)
	}
}
