package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

const (
	messageLimit    = 4096
	messagePodLimit = 12 << 10
	messageLogBytes = 2048
	messageLogLines = 80
)

// TerminationMessage reads what an ended container left to say: its file, else, where the policy says so, the end of its log.
func (e *Executor) TerminationMessage(p *v1.Pod, c *pod.Container) string {
	containers := max(1, len(p.Spec.Containers)+len(p.Spec.InitContainers))
	limit := min(messageLimit, messagePodLimit/containers)
	path := c.Annotations[pod.AnnotationTerminationMessagePath]
	message := ""
	for _, m := range c.Mounts {
		if path != "" && m.ContainerPath == path && strings.HasPrefix(m.HostPath, e.PodDir(string(p.UID))+"/containers/") {
			message = readHead(m.HostPath, limit)
		}
	}
	fallback := c.Annotations[pod.AnnotationTerminationMessagePolicy] == string(v1.TerminationMessageFallbackToLogsOnError)
	if message == "" && fallback && c.ExitCode != 0 && strings.HasPrefix(c.LogPath, e.cfg.PodLogDir+"/") {
		message = readLogTail(c.LogPath, min(limit, messageLogBytes))
	}
	return strings.ToValidUTF8(message, "�")
}

// readHead reads the beginning of a regular file; what can't be read is empty.
func readHead(path string, limit int) string {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err != nil {
		return ""
	}
	return string(data)
}

// readLogTail reads the last lines of a container's log without their time stamps.
func readLogTail(path string, limit int) string {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	const perLine = 64 // the stamp, the stream and the tag of a line
	offset := max(0, info.Size()-int64(limit)-messageLogLines*perLine)
	data, err := io.ReadAll(io.NewSectionReader(f, offset, info.Size()-offset))
	if err != nil {
		return ""
	}
	if offset > 0 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	lines := strings.SplitAfter(string(data), "\n")
	lines = lines[max(0, len(lines)-1-messageLogLines):]
	var b strings.Builder
	for _, line := range lines {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			text := fields[3]
			if fields[2] == "P" {
				text = strings.TrimSuffix(text, "\n")
			}
			b.WriteString(text)
		}
	}
	text := b.String()
	return text[max(0, len(text)-limit):]
}

// Logged is the highest restart count of each container of which a log is left.
func (e *Executor) Logged(p *v1.Pod) map[string]uint32 {
	counts := make(map[string]uint32)
	containers, err := os.ReadDir(e.LogDir(p))
	if err != nil {
		return counts // there are none
	}
	for _, c := range containers {
		logs, err := os.ReadDir(filepath.Join(e.LogDir(p), c.Name()))
		if err != nil {
			continue
		}
		for _, log := range logs { // <restart count>.log, and what was rotated away of it
			number, _, _ := strings.Cut(log.Name(), ".")
			if n, err := strconv.ParseUint(number, 10, 31); err == nil {
				counts[c.Name()] = max(counts[c.Name()], uint32(n))
			}
		}
	}
	return counts
}

// RemoveContainer removes a dead container with its log and its termination message.
func (e *Executor) RemoveContainer(ctx context.Context, p *v1.Pod, c *pod.Container) error {
	if err := e.removeContainer(ctx, string(p.UID), c); err != nil {
		return err
	}
	var errs []error
	if e.cfg.LogLinkDir != "" {
		errs = append(errs, removeFile(e.logLink(p, c)))
	}
	if strings.HasPrefix(c.LogPath, e.LogDir(p)+"/") {
		errs = append(errs, removeFile(c.LogPath))
		entries, err := os.ReadDir(filepath.Dir(c.LogPath))
		if err != nil && !os.IsNotExist(err) {
			errs = append(errs, err)
		}
		for _, entry := range entries { // rotated files of the same log
			if strings.HasPrefix(entry.Name(), filepath.Base(c.LogPath)+".") {
				errs = append(errs, removeFile(filepath.Join(filepath.Dir(c.LogPath), entry.Name())))
			}
		}
	}
	for _, m := range c.Mounts {
		if filepath.Dir(m.HostPath) == e.containerDir(p, c.Name) {
			errs = append(errs, removeFile(m.HostPath))
		}
	}
	return errors.Join(errs...)
}

// Forget removes what a pod left on the node of which only the UID is known. logDir is its log directory, "" for none.
func (e *Executor) Forget(ctx context.Context, uid, logDir string) error {
	if logDir != "" && filepath.Dir(logDir) == filepath.Clean(e.cfg.PodLogDir) {
		if err := errors.Join(e.unlinkLogs(logDir), removeAll(logDir)); err != nil {
			return fmt.Errorf("remove the logs of pod %s: %w", uid, err)
		}
	}
	return e.remove(ctx, uid)
}

// Cleanup removes the pod's directories, logs and cgroups.
func (e *Executor) Cleanup(ctx context.Context, p *v1.Pod) error {
	if err := errors.Join(e.unlinkLogs(e.LogDir(p)), removeAll(e.LogDir(p))); err != nil {
		return fmt.Errorf("remove the logs of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return e.remove(ctx, string(p.UID))
}

func (e *Executor) remove(ctx context.Context, uid string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cgroups, err := e.cgroups(ctx)
	if err != nil {
		return err
	}
	err = e.removePod(cgroups, uid)
	if errors.Is(err, unix.EBUSY) {
		err = e.removeBusy(ctx, uid, cgroups, err)
	}
	// The pod's directory is made before anything else of it and goes last: as long as something is left, it is found by it.
	dir := e.PodDir(uid)
	err = errors.Join(err, removeAll(filepath.Join(dir, "containers")), removeFile(filepath.Join(dir, "etc-hosts")), removeFile(e.ranges().File(uid)))
	if err == nil {
		err = removeEmpty(dir)
	}
	if err != nil {
		return fmt.Errorf("remove what pod %s left on the node: %w", uid, err)
	}
	return nil
}

func removeAll(dir string) error { return os.RemoveAll(dir) }

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// removeEmpty removes a tree of empty directories. It fails on the first thing that is something else, or that is mounted.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			return fmt.Errorf("%s is still there", filepath.Join(dir, entry.Name()))
		}
		if err := removeEmpty(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return removeFile(dir)
}
