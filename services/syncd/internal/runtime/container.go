package runtime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/hosts"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

const etcHosts = "/etc/hosts"

// containerConfig describes a container to create. It makes no files.
func (e *Executor) containerConfig(ctx context.Context, r worker.StartRequest, c *v1.Container) (*cri.ContainerConfig, error) {
	if err := supported(r.Pod, c); err != nil {
		return nil, err
	}
	cgroups, err := e.cgroups(ctx)
	if err != nil {
		return nil, err
	}
	env, err := e.environment(r, c)
	if err != nil {
		return nil, err
	}
	security, err := e.containerSecurity(r.Pod, c, &r.Image)
	if err != nil {
		return nil, err
	}
	if security.Namespaces.User, err = e.userNamespace(r.Pod); err != nil {
		return nil, err
	}
	if err := target(r, &security.Namespaces); err != nil {
		return nil, err
	}
	annotations, err := containerAnnotations(r, c)
	if err != nil {
		return nil, err
	}
	mounts, err := e.mounts(ctx, r, c, env)
	if err != nil {
		return nil, err
	}
	if user := security.Namespaces.User; user != nil {
		for i := range mounts { // what they have belongs to the same users in the pod as on the node
			if mounts[i].Image == "" && mounts[i].ContainerPath != etcHosts && mounts[i].ContainerPath != c.TerminationMessagePath {
				mounts[i].UIDMappings, mounts[i].GIDMappings = user.UIDs, user.GIDs
			}
		}
	}
	labels := map[string]string{
		pod.LabelPodName: r.Pod.Name, pod.LabelPodNamespace: r.Pod.Namespace, pod.LabelPodUID: string(r.Pod.UID), pod.LabelContainerName: c.Name,
	}
	image := r.Image.ID
	if image == "" {
		image = c.Image
	}
	config := &cri.ContainerConfig{
		Name: c.Name, Attempt: r.Attempt, Image: cri.ImageSpec{Image: image, UserImage: c.Image},
		Command: env.expandAll(c.Command), Args: env.expandAll(c.Args), WorkingDir: c.WorkingDir, Env: env.list,
		Mounts: mounts, Labels: labels, Annotations: annotations,
		LogPath: filepath.Join(c.Name, strconv.FormatUint(uint64(r.Attempt), 10)+".log"),
		Stdin:   c.Stdin, StdinOnce: c.StdinOnce, TTY: c.TTY,
		Resources: e.resources(r.Pod, c, cgroups), Security: security,
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		config.StopSignal = string(*l.StopSignal)
	}
	return config, nil
}

// target lets an ephemeral container see the processes of the container that it is for.
func target(r worker.StartRequest, ns *cri.Namespaces) error {
	for i := range r.Pod.Spec.EphemeralContainers {
		e := &r.Pod.Spec.EphemeralContainers[i]
		if e.Name != r.Container || e.TargetContainerName == "" || ns.PID != cri.NamespaceContainer {
			continue
		}
		if r.TargetID == "" {
			return fmt.Errorf("target container %q does not run", e.TargetContainerName)
		}
		ns.PID, ns.TargetID = cri.NamespaceTarget, r.TargetID
	}
	return nil
}

// supported names what this node can't do yet; admission refuses it with the field's path, this is the backstop.
func supported(p *v1.Pod, c *v1.Container) error {
	for i := range c.VolumeMounts {
		if m := &c.VolumeMounts[i]; (m.SubPath != "" || m.SubPathExpr != "") && !isImageVolume(p, m.Name) {
			return fmt.Errorf("volume mount %s: subPath is not supported by this node", m.MountPath)
		}
	}
	if len(c.VolumeDevices) > 0 {
		return fmt.Errorf("volume device %s: block devices are not supported by this node", c.VolumeDevices[0].DevicePath)
	}
	return nil
}

func containerAnnotations(r worker.StartRequest, c *v1.Container) (map[string]string, error) {
	a := map[string]string{
		pod.AnnotationContainerHash:            plan.Hash(c),
		pod.AnnotationRestartCount:             strconv.FormatUint(uint64(r.Attempt), 10),
		pod.AnnotationTerminationMessagePath:   c.TerminationMessagePath,
		pod.AnnotationTerminationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if r.Trace != "" {
		a[pod.AnnotationTraceparent] = r.Trace
	}
	if r.RestartDelay > 0 {
		a[plan.AnnotationRestartDelay] = r.RestartDelay.String()
	}
	if !r.Decided.IsZero() {
		a[plan.AnnotationStartDecided] = r.Decided.UTC().Format(time.RFC3339Nano)
	}
	if s := r.Pod.DeletionGracePeriodSeconds; s != nil {
		a[pod.AnnotationPodDeletionGracePeriod] = strconv.FormatInt(*s, 10)
	}
	if s := r.Pod.Spec.TerminationGracePeriodSeconds; s != nil {
		a[pod.AnnotationPodTerminationGracePeriod] = strconv.FormatInt(*s, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		raw, err := json.Marshal(c.Lifecycle.PreStop)
		if err != nil {
			return nil, fmt.Errorf("encode the preStop hook: %w", err)
		}
		a[pod.AnnotationPreStopHandler] = string(raw)
	}
	if len(c.Ports) > 0 {
		raw, err := json.Marshal(c.Ports)
		if err != nil {
			return nil, fmt.Errorf("encode the ports: %w", err)
		}
		a[pod.AnnotationContainerPorts] = string(raw)
	}
	return a, nil
}

func randomName() (string, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make a random name: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

func (e *Executor) containerDir(p *v1.Pod, container string) string {
	return filepath.Join(e.PodDir(string(p.UID)), "containers", container)
}

// makeContainerDirs makes the files and directories that the config refers to.
func (e *Executor) makeContainerDirs(r worker.StartRequest, c *v1.Container, config *cri.ContainerConfig) error {
	if err := os.MkdirAll(filepath.Join(e.LogDir(r.Pod), c.Name), 0o755); err != nil {
		return fmt.Errorf("make the container's log directory: %w", err)
	}
	for _, m := range config.Mounts {
		switch m.ContainerPath {
		case c.TerminationMessagePath:
			if filepath.Dir(m.HostPath) != e.containerDir(r.Pod, c.Name) {
				continue
			}
			if err := makeMessageFile(m.HostPath); err != nil {
				return err
			}
		case etcHosts:
			if filepath.Dir(m.HostPath) != e.PodDir(string(r.Pod.UID)) {
				continue
			}
			if err := e.writeHosts(r.Pod, r.Sandbox.IPs, m.HostPath); err != nil {
				return err
			}
		}
	}
	return nil
}

func makeMessageFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make the directory of the termination message: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("make the file of the termination message: %w", err)
	}
	defer f.Close()
	if err := f.Chmod(0o666); err != nil {
		return fmt.Errorf("open the file of the termination message to everybody in the container: %w", err)
	}
	return nil
}

// writeHosts writes the pod's hosts file where it is not as it should be. The file stays the same one: containers have it mounted.
func (e *Executor) writeHosts(p *v1.Pod, ips []string, path string) error {
	var nodeFile []byte
	if p.Spec.HostNetwork && e.cfg.HostsFile != "" {
		var err error
		if nodeFile, err = os.ReadFile(e.cfg.HostsFile); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("read the node's hosts file: %w", err)
		}
	}
	want := hosts.File(p, ips, e.cfg.Cluster.Domain, nodeFile)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(want) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	if err := os.WriteFile(path, want, 0o644); err != nil {
		return fmt.Errorf("write the pod's hosts file: %w", err)
	}
	return nil
}
