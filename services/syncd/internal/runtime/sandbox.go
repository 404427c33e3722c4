package runtime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/hosts"
	"github.com/podplane/podplane/services/syncd/internal/userns"
)

// sandboxConfig describes the pod's sandbox. It is the same each time for one pod and attempt. complaint says what the resolver had to leave out.
func (e *Executor) sandboxConfig(ctx context.Context, p *v1.Pod, attempt uint32, trace string) (config *cri.SandboxConfig, complaint string, err error) {
	cgroups, err := e.cgroups(ctx)
	if err != nil {
		return nil, "", err
	}
	config = &cri.SandboxConfig{
		Name: p.Name, Namespace: p.Namespace, UID: string(p.UID), Attempt: attempt,
		LogDirectory: e.LogDir(p), Labels: podLabels(p), Annotations: podAnnotations(p, trace),
		CgroupParent: cgroups.Parent(p), Security: sandboxSecurity(p), PortMappings: portMappings(p),
	}
	if e.cfg.RuntimeHandler != nil {
		if config.RuntimeHandler, err = e.cfg.RuntimeHandler(p); err != nil {
			return nil, "", err
		}
	}
	if config.Security.Namespaces.User, err = e.userNamespace(p); err != nil {
		return nil, "", err
	}
	if !p.Spec.HostNetwork {
		if config.Hostname, err = hosts.KernelHostname(p, e.cfg.Cluster.Domain); err != nil {
			return nil, "", err
		}
	}
	node, err := e.nodeResolver()
	if err != nil {
		return nil, "", err
	}
	config.DNS, complaint = hosts.Resolve(p, node, e.cfg.Cluster)
	if sc := p.Spec.SecurityContext; sc != nil && len(sc.Sysctls) > 0 {
		config.Sysctls = make(map[string]string, len(sc.Sysctls))
		for _, s := range sc.Sysctls {
			config.Sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
		}
	}
	return config, complaint, nil
}

// userNamespace is the pod's mapping of IDs, nil for a pod that uses the node's.
func (e *Executor) userNamespace(p *v1.Pod) (*cri.UserNamespace, error) {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers {
		return nil, nil
	}
	if err := e.makePodDirs(p); err != nil {
		return nil, err
	}
	ids, err := e.ranges().Get(string(p.UID))
	if err != nil {
		return nil, fmt.Errorf("map the user IDs of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return &cri.UserNamespace{UIDs: ids, GIDs: ids}, nil
}

func (e *Executor) ranges() userns.Ranges { return userns.Ranges{Root: e.cfg.Root} }

func (e *Executor) nodeResolver() (hosts.Resolver, error) {
	if e.cfg.ResolvConf == "" {
		return hosts.Resolver{Servers: []string{"127.0.0.1"}}, nil
	}
	data, err := os.ReadFile(e.cfg.ResolvConf)
	if os.IsNotExist(err) {
		return hosts.Resolver{}, nil
	}
	if err != nil {
		return hosts.Resolver{}, fmt.Errorf("read the node's resolver configuration: %w", err)
	}
	return hosts.ParseResolvConf(data), nil
}

func podLabels(p *v1.Pod) map[string]string {
	labels := make(map[string]string, len(p.Labels)+3)
	for k, v := range p.Labels {
		labels[k] = v
	}
	labels[pod.LabelPodName], labels[pod.LabelPodNamespace], labels[pod.LabelPodUID] = p.Name, p.Namespace, string(p.UID)
	return labels
}

func podAnnotations(p *v1.Pod, trace string) map[string]string {
	annotations := make(map[string]string, len(p.Annotations)+1)
	for k, v := range p.Annotations {
		annotations[k] = v
	}
	if trace != "" {
		annotations[pod.AnnotationTraceparent] = trace
	}
	return annotations
}

// portMappings are the ports that the node forwards to the pod.
func portMappings(p *v1.Pod) []cri.PortMapping {
	if p.Spec.HostNetwork {
		return nil
	}
	var list []cri.PortMapping
	for _, containers := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.HostPort <= 0 {
					continue
				}
				m := cri.PortMapping{ContainerPort: port.ContainerPort, HostPort: port.HostPort, HostIP: port.HostIP}
				switch port.Protocol {
				case v1.ProtocolUDP:
					m.Protocol = cri.ProtocolUDP
				case v1.ProtocolSCTP:
					m.Protocol = cri.ProtocolSCTP
				}
				list = append(list, m)
			}
		}
	}
	return list
}

// PodDir is the pod's directory.
func (e *Executor) PodDir(uid string) string { return filepath.Join(e.cfg.Root, "pods", uid) }

// LogDir is the directory of the pod's logs.
func (e *Executor) LogDir(p *v1.Pod) string {
	return filepath.Join(e.cfg.PodLogDir, fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID))
}

func (e *Executor) makePodDirs(p *v1.Pod) error {
	if err := os.MkdirAll(e.PodDir(string(p.UID)), 0o750); err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	if err := os.MkdirAll(e.LogDir(p), 0o755); err != nil {
		return fmt.Errorf("make the pod's log directory: %w", err)
	}
	return nil
}
