package runtime_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// node is an Executor on a runtime in memory that remembers what it was asked to create.
type node struct {
	t    *testing.T
	cri  *crifake.Runtime
	exec *runtime.Executor
	dir  string
	// cgroup is below which the pods' cgroups are.
	cgroup string

	mu       sync.Mutex
	config   *cri.ContainerConfig
	commands []string
	events   []string
}

func (n *node) PodEvent(_ *v1.Pod, container, _, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, container+" "+reason+" "+message)
}

func (n *node) ConfigMap(_, name string) (*v1.ConfigMap, bool) {
	return &v1.ConfigMap{Data: map[string]string{"K1": "one", "K2": "two", "bad=name": "x"}}, name == "cm"
}

func (n *node) Secret(_, name string) (*v1.Secret, bool) {
	return &v1.Secret{Data: map[string][]byte{"password": []byte("hidden")}}, name == "sec"
}

func newNode(t *testing.T, change ...func(*runtime.Config)) *node {
	n := &node{t: t, dir: t.TempDir(), cgroup: testkit.CgroupRoot(t)}
	n.cri = crifake.New(crifake.Options{Node: "n1", AnyImage: true, Behavior: func(_ pod.Container, c *cri.ContainerConfig) crifake.Behavior {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.config = c
		return crifake.Behavior{Exec: func(_ context.Context, command []string) crifake.Exec {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.commands = append(n.commands, strings.Join(command, " "))
			if command[0] == "fail" {
				return crifake.Exec{ExitCode: 3, Stderr: "broken"}
			}
			return crifake.Exec{}
		}}
	}})
	resolv := filepath.Join(n.dir, "resolv.conf")
	write(t, resolv, "nameserver 192.0.2.53\n")
	config := runtime.Config{
		Node: "n1", Root: n.dir, PodLogDir: filepath.Join(n.dir, "logs"), HostIPs: []string{"192.0.2.1"}, ResolvConf: resolv,
		Cgroups:     runtime.Cgroups{Mount: filepath.Join(n.dir, "cgroup"), Root: n.cgroup, Unified: true},
		Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi")},
	}
	for _, c := range change {
		c(&config)
	}
	n.exec = runtime.New(config, n.cri, images.New(images.Config{}, n.cri, n, n), n, n)
	return n
}

// want is the image of the pod's first container.
func want(p *v1.Pod) images.Want {
	c := &p.Spec.Containers[0]
	return images.Want{Container: c.Name, Image: c.Image, Policy: c.ImagePullPolicy}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func newPod(change ...func(*v1.PodSpec, *v1.Container)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u-1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "hi"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "app:1", TerminationMessagePath: "/dev/termination-log"}}},
	}
	for _, c := range change {
		c(&p.Spec, &p.Spec.Containers[0])
	}
	return p
}

// start runs the pod's only container and returns what the runtime was asked for.
func (n *node) start(p *v1.Pod, image cri.Image) (pod.Container, *cri.ContainerConfig, error) {
	n.t.Helper()
	s, err := n.exec.CreateSandbox(n.t.Context(), p, 0, "")
	if err != nil {
		n.t.Fatal(err)
	}
	if image.ID == "" {
		present, err := n.exec.EnsureImage(n.t.Context(), p, want(p))
		if err != nil {
			n.t.Fatal(err)
		}
		image.ID = present.ID
	}
	c, err := n.exec.StartContainer(n.t.Context(), worker.StartRequest{
		Pod: p, Container: "c", Sandbox: s, Image: image, Volumes: map[string]string{"data": "/host/data", "cm": "/host/cm"}, Attempt: 2,
		RestartDelay: 20 * time.Second, Decided: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Trace: "00-11111111111111111111111111111111-2222222222222222-01",
	})
	return c, n.config, err
}

func (n *node) mustStart(p *v1.Pod) (pod.Container, *cri.ContainerConfig) {
	n.t.Helper()
	c, config, err := n.start(p, cri.Image{})
	if err != nil {
		n.t.Fatal(err)
	}
	return c, config
}

func envOf(config *cri.ContainerConfig) string {
	var list []string
	for _, e := range config.Env {
		list = append(list, e.Name+"="+e.Value)
	}
	return strings.Join(list, " ")
}

func TestEnvironment(t *testing.T) {
	field := func(path string) *v1.EnvVarSource {
		return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
	}
	amount := func(of, divisor string) *v1.EnvVarSource {
		s := &v1.ResourceFieldSelector{Resource: of}
		if divisor != "" {
			s.Divisor = resource.MustParse(divisor)
		}
		return &v1.EnvVarSource{ResourceFieldRef: s}
	}
	optional := true
	n := newNode(t)
	p := newPod(func(_ *v1.PodSpec, c *v1.Container) {
		c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("100Mi")}
		c.EnvFrom = []v1.EnvFromSource{
			{Prefix: "P_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Optional: &optional}},
		}
		c.Env = []v1.EnvVar{
			{Name: "A", Value: "a"},
			{Name: "B", Value: "$(A)-$(P_K1)-$$(A)-$(NONE)-$A-$("},
			{Name: "A", Value: "again"},
			{Name: "NAME", ValueFrom: field("metadata.name")},
			{Name: "LABEL", ValueFrom: field("metadata.labels['app']")},
			{Name: "NOTE", ValueFrom: field("metadata.annotations['note']")},
			{Name: "HOST", ValueFrom: field("status.hostIP")},
			{Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "MEM", ValueFrom: amount("limits.memory", "1Mi")},
			{Name: "CPU", ValueFrom: amount("limits.cpu", "")},
			{Name: "KEY", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Key: "K2"}}},
			{Name: "GONE", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Key: "none", Optional: &optional}}},
			{Name: "PW", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "sec"}, Key: "password"}}},
		}
		c.Command, c.Args = []string{"run", "$(A)"}, []string{"--x=$(P_K2)"}
	})
	_, config := n.mustStart(p)
	want := "P_K1=one P_K2=two A=again B=a-one-$(A)-$(NONE)-$A-$( NAME=p LABEL=web NOTE=hi HOST=192.0.2.1 NODE=n1 MEM=100 CPU=4 KEY=two PW=hidden"
	if got := envOf(config); got != want {
		t.Errorf("environment\n got %s\nwant %s", got, want)
	}
	if got := strings.Join(append(config.Command, config.Args...), " "); got != "run again --x=two" {
		t.Errorf("command is %q", got)
	}
	if !slices.ContainsFunc(n.events, func(e string) bool { return strings.Contains(e, "P_bad=name") }) {
		t.Errorf("the skipped name is not told: %q", n.events)
	}
}

func TestWhatCannotBeConfigured(t *testing.T) {
	yes := true
	for name, test := range map[string]struct {
		change  func(*v1.PodSpec, *v1.Container)
		image   cri.Image
		message string
	}{
		"no configmap": {change: func(_ *v1.PodSpec, c *v1.Container) {
			c.EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}}}}
		}, message: `configmap "none" not found`},
		"no key": {change: func(_ *v1.PodSpec, c *v1.Container) {
			c.Env = []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "sec"}, Key: "none"}}}}
		}, message: "couldn't find key none in Secret ns/sec"},
		"field": {change: func(_ *v1.PodSpec, c *v1.Container) {
			c.Env = []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.hostname"}}}}
		}, message: "unsupported fieldPath: spec.hostname"},
		"volume": {change: func(_ *v1.PodSpec, c *v1.Container) {
			c.VolumeMounts = []v1.VolumeMount{{Name: "other", MountPath: "/x"}}
		}, message: `volume "other" is not set up`},
		"subPath": {change: func(_ *v1.PodSpec, c *v1.Container) {
			c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/x", SubPath: "y"}}
		}, message: "subPath is not supported"},
		"root by the spec": {change: func(s *v1.PodSpec, _ *v1.Container) {
			root := int64(0)
			s.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &root}
		}, message: "breaks non-root policy"},
		"root by the image": {change: func(_ *v1.PodSpec, c *v1.Container) { c.SecurityContext = &v1.SecurityContext{RunAsNonRoot: &yes} }, message: "image will run as root"},
		"named user": {
			change: func(_ *v1.PodSpec, c *v1.Container) { c.SecurityContext = &v1.SecurityContext{RunAsNonRoot: &yes} },
			image:  cri.Image{Username: "app"}, message: "non-numeric user (app)",
		},
		"seccomp path": {change: func(_ *v1.PodSpec, c *v1.Container) {
			path := "../x"
			c.SecurityContext = &v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: &path}}
		}, message: "localhostProfile"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := newPod(test.change)
			image := test.image
			if image.Username != "" {
				present, err := n.exec.EnsureImage(t.Context(), p, want(p))
				if err != nil {
					t.Fatal(err)
				}
				image.ID = present.ID
			}
			_, _, err := n.start(p, image)
			e, ok := err.(*worker.StartError) //nolint:errorlint // the Executor promises this very type
			if !ok || e.Reason != worker.ReasonCreateContainerConfigError || !strings.Contains(err.Error(), test.message) {
				t.Errorf("error is %v", err)
			}
			if len(n.cri.Calls("create_container")) > 0 {
				t.Error("something was created")
			}
		})
	}
}

func TestContainer(t *testing.T) {
	n := newNode(t)
	readOnly := false
	p := newPod(func(s *v1.PodSpec, c *v1.Container) {
		user, group, fs := int64(1000), int64(2000), int64(3000)
		s.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, FSGroup: &fs, SupplementalGroups: []int64{4000}}
		c.SecurityContext = &v1.SecurityContext{
			RunAsGroup: &group, AllowPrivilegeEscalation: &readOnly, Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}},
			SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
		}
		s.Volumes = []v1.Volume{{Name: "data"}, {Name: "cm", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}}}
		propagation := v1.MountPropagationHostToContainer
		c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data", MountPropagation: &propagation}, {Name: "cm", MountPath: "config"}}
		c.Resources = v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("2Gi")},
			Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourceMemory: resource.MustParse("4Gi")},
		}
		c.WorkingDir, c.TTY = "/w", true
	})
	c, config := n.mustStart(p)
	if c.State != pod.ContainerRunning || c.Attempt != 2 || c.SandboxID == "" {
		t.Errorf("container: %+v", c)
	}
	sec := config.Security
	if *sec.RunAsUser != 1000 || *sec.RunAsGroup != 2000 || !slices.Equal(sec.SupplementalGroups, []int64{3000, 4000}) || !sec.NoNewPrivs ||
		!slices.Equal(sec.Capabilities.Drop, []string{"ALL"}) || sec.Seccomp.Type != cri.ProfileRuntimeDefault || sec.Namespaces.PID != cri.NamespaceContainer || len(sec.MaskedPaths) == 0 {
		t.Errorf("security: %+v", sec)
	}
	r := config.Resources
	if r.CPUShares != 512 || r.CPUQuota != 150000 || r.MemoryLimitBytes != 4<<30 || r.OOMScoreAdj != 750 || r.Unified["memory.oom.group"] != "1" {
		t.Errorf("resources: %+v", r)
	}
	var mounts []string
	for _, m := range config.Mounts {
		mounts = append(mounts, m.ContainerPath+"<"+strings.TrimPrefix(m.HostPath, n.dir))
	}
	got := strings.Join(mounts, " ")
	if !strings.HasPrefix(got, "/data</host/data /config</host/cm /etc/hosts</pods/u-1/etc-hosts /dev/termination-log</pods/u-1/containers/c/") || !config.Mounts[1].ReadOnly || config.Mounts[0].Propagation != pod.MountHostToContainer {
		t.Errorf("mounts: %s %+v", got, config.Mounts)
	}
	a := config.Annotations
	if a[pod.AnnotationRestartCount] != "2" || a[plan.AnnotationRestartDelay] != "20s" || a[plan.AnnotationStartDecided] != "2026-01-02T03:04:05.000006Z" || a[pod.AnnotationContainerHash] != plan.Hash(&p.Spec.Containers[0]) || a[pod.AnnotationTraceparent] == "" {
		t.Errorf("annotations: %v", a)
	}
	if config.LogPath != "c/2.log" || config.WorkingDir != "/w" || !config.TTY || config.Image.UserImage != "app:1" {
		t.Errorf("config: %+v", config)
	}
	if file, err := os.ReadFile(filepath.Join(n.dir, "pods/u-1/etc-hosts")); err != nil || !strings.Contains(string(file), "\tp\n") {
		t.Errorf("hosts file: %s, %v", file, err)
	}
	if err := n.exec.Cleanup(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"pods/u-1", "logs/ns_p_u-1"} {
		if _, err := os.Stat(filepath.Join(n.dir, left)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", left, err)
		}
	}
}

// TestStartIsNotCancelledHalfWay ends the context while the runtime starts the container: the answer is waited for.
func TestStartIsNotCancelledHalfWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		p := newPod()
		s, err := n.exec.CreateSandbox(t.Context(), p, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		image, err := n.exec.EnsureImage(t.Context(), p, want(p))
		if err != nil {
			t.Fatal(err)
		}
		release := n.cri.Hang("start_container", "")
		ctx, cancel := context.WithCancel(t.Context())
		var c pod.Container
		done := make(chan error, 1)
		go func() {
			var err error
			c, err = n.exec.StartContainer(ctx, worker.StartRequest{Pod: p, Container: "c", Sandbox: s, Image: image})
			done <- err
		}()
		synctest.Wait() // the call hangs in the runtime
		cancel()
		synctest.Wait()
		release()
		if err := <-done; err != nil || c.State != pod.ContainerRunning {
			t.Errorf("after the cancellation: %+v, %v; want the container that runs", c, err)
		}
		if _, err := n.exec.StartContainer(ctx, worker.StartRequest{Pod: p, Container: "c", ID: c.ID, Sandbox: s, Image: image}); !errors.Is(err, context.Canceled) {
			t.Errorf("a start that has not begun yet: %v, want it cancelled", err)
		}
	})
}

func TestCleanupStopsAtWhatIsNotItsOwn(t *testing.T) {
	n := newNode(t)
	p := newPod()
	write(t, filepath.Join(n.dir, "pods/u-1/volumes/kubernetes.io~empty-dir/data/precious"), "x")
	if err := n.exec.Cleanup(t.Context(), p); err == nil {
		t.Error("removed a volume's content")
	}
	if _, err := os.Stat(filepath.Join(n.dir, "pods/u-1/volumes/kubernetes.io~empty-dir/data/precious")); err != nil {
		t.Error(err)
	}
	if err := n.exec.Forget(t.Context(), "u-2", filepath.Join(n.dir, "elsewhere")); err != nil {
		t.Error(err)
	}
}

func TestCgroups(t *testing.T) {
	burstable := newPod(func(_ *v1.PodSpec, c *v1.Container) {
		c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	})
	for _, test := range []struct {
		cgroups runtime.Cgroups
		pod     *v1.Pod
		want    string
	}{
		{runtime.Cgroups{}, newPod(), "/kubepods/besteffort/podu-1"},
		{runtime.Cgroups{Root: "/mine"}, burstable, "/mine/kubepods/burstable/podu-1"},
		{runtime.Cgroups{Driver: cri.CgroupDriverSystemd}, burstable, "kubepods-burstable-podu_1.slice"},
		{runtime.Cgroups{Driver: cri.CgroupDriverSystemd, Root: "mine.slice"}, newPod(), "mine-kubepods-besteffort-podu_1.slice"},
	} {
		if got := test.cgroups.Parent(test.pod); got != test.want {
			t.Errorf("parent is %s, want %s", got, test.want)
		}
	}
	n := newNode(t)
	for _, dir := range []string{"cgroup/" + n.cgroup + "/kubepods/besteffort/podu-1/a/b", "cgroup/" + n.cgroup + "/kubepods/besteffort/podu-2"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.exec.Cleanup(t.Context(), newPod()); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(n.dir, "cgroup", n.cgroup, "kubepods/besteffort/*")); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestTerminationMessage(t *testing.T) {
	n := newNode(t)
	p := newPod(func(_ *v1.PodSpec, c *v1.Container) {
		c.TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	})
	c, config := n.mustStart(p)
	path := ""
	for _, m := range config.Mounts {
		if m.ContainerPath == "/dev/termination-log" {
			path = m.HostPath
		}
	}
	c.ExitCode = 1
	write(t, c.LogPath, "2026-01-01T00:00:00Z stdout F first\n2026-01-01T00:00:00Z stderr P part \n2026-01-01T00:00:00Z stderr F and rest\n")
	if got := n.exec.TerminationMessage(p, &c); got != "first\npart and rest\n" {
		t.Errorf("from the log: %q", got)
	}
	write(t, path, strings.Repeat("m", 5000))
	if got := n.exec.TerminationMessage(p, &c); got != strings.Repeat("m", 4096) {
		t.Errorf("from the file: %d bytes", len(got))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(n.dir, "resolv.conf"), path); err != nil {
		t.Fatal(err)
	}
	c.ExitCode = 0
	if got := n.exec.TerminationMessage(p, &c); got != "" {
		t.Errorf("through a symbolic link: %q", got)
	}
	if err := n.exec.RemoveContainer(t.Context(), p, &c); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{c.LogPath, path} {
		if _, err := os.Lstat(gone); !os.IsNotExist(err) {
			t.Errorf("%s is left", gone)
		}
	}
}

func TestHooks(t *testing.T) {
	n := newNode(t)
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Host+r.URL.String()+" "+r.Header.Get("X"))
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	p := newPod(func(_ *v1.PodSpec, c *v1.Container) {
		c.Ports = []v1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}
		c.Lifecycle = &v1.Lifecycle{
			PostStart: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/up?x=1", Port: intstr.FromString("web"), HTTPHeaders: []v1.HTTPHeader{{Name: "X", Value: "y"}, {Name: "Host", Value: "h.example"}}}},
			PreStop:   &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"fail", "now"}}},
		}
	})
	c, _ := n.mustStart(p)
	if err := n.exec.PostStart(t.Context(), p, "c", c.ID, "127.0.0.1"); err != nil {
		t.Errorf("an answer of any code will do: %v", err)
	}
	if len(asked) != 1 || asked[0] != "h.example/up?x=1 y" {
		t.Errorf("asked %q", asked)
	}
	server.Close()
	if err := n.exec.PostStart(t.Context(), p, "c", c.ID, "127.0.0.1"); err == nil {
		t.Error("no answer is no failure")
	}
	if err := n.exec.KillContainer(t.Context(), worker.KillRequest{Pod: p, Container: "c", ID: c.ID, Grace: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.commands, []string{"fail now"}) || !slices.ContainsFunc(n.events, func(e string) bool { return strings.Contains(e, "FailedPreStopHook") && strings.Contains(e, "broken") }) {
		t.Errorf("commands %q, events %q", n.commands, n.events)
	}
	if left, err := n.cri.ContainerStatus(t.Context(), c.ID); err != nil || left.State != pod.ContainerExited {
		t.Errorf("not stopped: %+v, %v", left, err)
	}
}

// A hook by HTTPS that meets a plain server is sent again without what is secret in it.
func TestHookFallsBackToHTTP(t *testing.T) {
	n := newNode(t)
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X"))
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := newPod(func(_ *v1.PodSpec, c *v1.Container) {
		c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
			Scheme: v1.URISchemeHTTPS, Path: "/up", Port: intstr.FromString(u.Port()), HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "secret"}, {Name: "X", Value: "y"}},
		}}}
	})
	c, _ := n.mustStart(p)
	if err := n.exec.PostStart(t.Context(), p, "c", c.ID, "127.0.0.1"); err != nil || len(asked) != 1 || asked[0] != "/up  y" {
		t.Errorf("asked %q, %v", asked, err)
	}
	if !slices.ContainsFunc(n.events, func(e string) bool { return strings.HasPrefix(e, "c LifecycleHTTPFallback") }) {
		t.Errorf("events %q", n.events)
	}
}

func TestSandbox(t *testing.T) {
	n := newNode(t)
	p := newPod(func(s *v1.PodSpec, c *v1.Container) {
		c.Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: v1.ProtocolUDP}, {ContainerPort: 81}}
		s.DNSPolicy = v1.DNSDefault
		yes := true
		s.ShareProcessNamespace = &yes
	})
	s, err := n.exec.CreateSandbox(t.Context(), p, 3, "00-11111111111111111111111111111111-2222222222222222-01")
	if err != nil {
		t.Fatal(err)
	}
	if s.Attempt != 3 || !s.Ready || s.Labels["app"] != "web" || s.Labels[pod.LabelPodUID] != "u-1" || s.Annotations["note"] != "hi" || s.Annotations[pod.AnnotationTraceparent] == "" {
		t.Errorf("sandbox: %+v", s)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "logs/ns_p_u-1")); err != nil {
		t.Error(err)
	}
}
