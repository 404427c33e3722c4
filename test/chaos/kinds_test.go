package chaos_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/test/harness"
)

// kind is a sort of pod and what becomes of it.
type kind struct {
	name, spec string
	// atRest says whether the pod is as it is to be; runs is how many containers run in it then.
	atRest func(*corev1.Pod) bool
	runs   int
}

func phaseIs(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Status.Phase == phase }
}

var kinds = []*kind{
	{name: "server", atRest: harness.IsReady, runs: 1, spec: `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`},
	{name: "mounts", atRest: harness.IsReady, runs: 1, spec: `
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {medium: Memory}}, {name: disk, emptyDir: {}}, {name: cm, configMap: {name: settings}}]
  containers:
  - name: app
    image: $IMAGE
    args: [sleep, forever]
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: disk, mountPath: /disk}, {name: cm, mountPath: /cm}]
`},
	{name: "sidecar", atRest: harness.IsReady, runs: 2, spec: `
  terminationGracePeriodSeconds: 2
  initContainers:
  - {name: init, image: $IMAGE, args: [exit, "0"]}
  - {name: side, image: $IMAGE, args: [sleep, forever], restartPolicy: Always}
  containers:
  - {name: app, image: $IMAGE, args: [sleep, forever]}
`},
	{name: "two", atRest: harness.IsReady, runs: 2, spec: `
  terminationGracePeriodSeconds: 1
  hostNetwork: true
  containers:
  - {name: app, image: $IMAGE, args: [sleep, forever]}
  - name: hook
    image: $IMAGE
    args: [sleep, forever]
    lifecycle: {postStart: {sleep: {seconds: 1}}, preStop: {sleep: {seconds: 1}}}
`},
	{name: "stubborn", atRest: harness.IsReady, runs: 1, spec: `
  terminationGracePeriodSeconds: 3
  containers: [{name: app, image: $IMAGE, args: [stubborn]}]
`},
	{name: "job", atRest: phaseIs(corev1.PodSucceeded), spec: `
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [exit, "0", 1s]}]
`},
	{name: "failing-job", atRest: phaseIs(corev1.PodFailed), spec: `
  restartPolicy: Never
  initContainers: [{name: init, image: $IMAGE, args: [exit, "3"]}]
  containers: [{name: app, image: $IMAGE, args: [exit, "0"]}]
`},
	{name: "crashing", atRest: func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > 1
	}, runs: -1, spec: `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: $IMAGE, args: [exit, "1", 500ms]}]
`},
}

// steady is a pod that nobody deletes: nothing that happens to services may be seen in it.
var steady = kinds[0]

// spec is the pod's specification; some mount a volume that takes a while to come.
func (k *kind) manifest(name string) string { return manifest(name, k.spec) }

// check compares a pod that is at rest with what runs of it.
func (k *kind) check(p *corev1.Pod, running int) error {
	if !k.atRest(p) {
		return wrong(p.Name, "a %s that is not at rest yet: %s", k.name, brief(p))
	}
	if k.runs >= 0 && running != k.runs {
		return wrong(p.Name, "%d containers of a %s run, want %d", running, k.name, k.runs)
	}
	return nil
}

func brief(p *corev1.Pod) string {
	return fmt.Sprintf("phase %s, conditions %v, containers %+v", p.Status.Phase, p.Status.Conditions, p.Status.ContainerStatuses)
}
