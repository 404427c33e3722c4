package admission

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	fileMode       = int32(0o644)
	schedulerName  = "default-scheduler"
	priorityNode   = "system-node-critical"
	priorityOthers = "system-cluster-critical"
)

// ClearSystemMeta removes from what a client sent the metadata that only the system sets.
func ClearSystemMeta(o metav1.Object) {
	o.SetSelfLink("")
	o.SetManagedFields(nil)
	o.SetUID("")
	o.SetGeneration(0)
	o.SetCreationTimestamp(metav1.Time{})
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
	a := o.GetAnnotations()
	for _, k := range AnswerAnnotations() {
		delete(a, k)
	}
	if len(a) == 0 {
		o.SetAnnotations(nil)
	}
}

// Defaults fills in what Kubernetes' API server fills in.
func Defaults(pod *v1.Pod) {
	s := &pod.Spec
	orDefault(&s.RestartPolicy, v1.RestartPolicyAlways)
	orDefault(&s.DNSPolicy, v1.DNSClusterFirst)
	orDefault(&s.SchedulerName, schedulerName)
	setIfNil(&s.TerminationGracePeriodSeconds, int64(v1.DefaultTerminationGracePeriodSeconds))
	setIfNil(&s.SecurityContext, v1.PodSecurityContext{})
	setIfNil(&s.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	defaultPriority(s)
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i], s.HostNetwork)
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i], s.HostNetwork)
	}
	defaultPodResources(pod)
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
}

// defaultPriority resolves the two classes that every cluster has.
func defaultPriority(s *v1.PodSpec) {
	switch s.PriorityClassName {
	case priorityNode:
		setIfNil(&s.Priority, 2000001000)
	case priorityOthers:
		setIfNil(&s.Priority, 2000000000)
	case "":
		setIfNil(&s.Priority, 0)
	}
	setIfNil(&s.PreemptionPolicy, v1.PreemptLowerPriority)
}

func defaultContainer(c *v1.Container, hostNetwork bool) {
	orDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	orDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	for i := range c.Ports {
		p := &c.Ports[i]
		orDefault(&p.Protocol, v1.ProtocolTCP)
		if hostNetwork && p.HostPort == 0 {
			p.HostPort = p.ContainerPort
		}
	}
	for i := range c.Env {
		if f := c.Env[i].ValueFrom; f != nil && f.FieldRef != nil {
			orDefault(&f.FieldRef.APIVersion, "v1")
		}
	}
	for _, p := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*v1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
	for k, v := range c.Resources.Limits {
		if _, asked := c.Resources.Requests[k]; !asked {
			if c.Resources.Requests == nil {
				c.Resources.Requests = make(v1.ResourceList, len(c.Resources.Limits))
			}
			c.Resources.Requests[k] = v.DeepCopy()
		}
	}
}

// pullPolicy is Always for an image without a tag or with the tag latest.
func pullPolicy(image string) v1.PullPolicy {
	if strings.Contains(image, "@") {
		return v1.PullIfNotPresent
	}
	tag := ""
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		tag = image[i+1:]
	}
	if tag == "" || tag == "latest" {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

func defaultProbe(p *v1.Probe) {
	if p == nil {
		return
	}
	orDefault(&p.TimeoutSeconds, 1)
	orDefault(&p.PeriodSeconds, 10)
	orDefault(&p.SuccessThreshold, 1)
	orDefault(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		setIfNil(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(g *v1.HTTPGetAction) {
	if g != nil {
		orDefault(&g.Path, "/")
		orDefault(&g.Scheme, v1.URISchemeHTTP)
	}
}

func defaultVolume(v *v1.Volume) {
	if v.VolumeSource == (v1.VolumeSource{}) {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	switch {
	case v.HostPath != nil:
		setIfNil(&v.HostPath.Type, v1.HostPathUnset)
	case v.ConfigMap != nil:
		setIfNil(&v.ConfigMap.DefaultMode, fileMode)
	case v.Secret != nil:
		setIfNil(&v.Secret.DefaultMode, fileMode)
	case v.Image != nil && v.Image.PullPolicy == "":
		v.Image.PullPolicy = pullPolicy(v.Image.Reference)
	}
}

func orDefault[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

func setIfNil[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}
