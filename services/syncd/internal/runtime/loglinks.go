package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

const (
	logLinkTail = ".log"
	maxFileName = 255
)

// logLink is where log shippers look for the log of a container: <pod>_<namespace>_<container>-<id>.log, cut to what a file's name may have.
func (e *Executor) logLink(p *v1.Pod, c *pod.Container) string {
	name := fmt.Sprintf("%s_%s_%s-%s", p.Name, p.Namespace, c.Name, c.ID)
	return filepath.Join(e.cfg.LogLinkDir, name[:min(len(name), maxFileName-len(logLinkTail))]+logLinkTail)
}

// linkLog makes the link to the container's log. Without it the container runs all the same: that it is missing is told in an Event.
func (e *Executor) linkLog(p *v1.Pod, c *pod.Container) {
	if e.cfg.LogLinkDir == "" || c.LogPath == "" {
		return
	}
	link := e.logLink(p, c)
	err := os.Symlink(c.LogPath, link)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.Join(os.MkdirAll(e.cfg.LogLinkDir, 0o755), os.Symlink(c.LogPath, link))
	}
	if errors.Is(err, fs.ErrExist) {
		err = errors.Join(removeFile(link), os.Symlink(c.LogPath, link))
	}
	if err != nil {
		e.events.PodEvent(p, c.Name, v1.EventTypeWarning, "FailedLogLink", "Failed to link the container's log: "+err.Error())
	}
}

// unlinkLogs removes the links to all logs of a pod.
func (e *Executor) unlinkLogs(logDir string) error {
	if e.cfg.LogLinkDir == "" {
		return nil
	}
	entries, err := os.ReadDir(e.cfg.LogLinkDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the links to logs: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		link := filepath.Join(e.cfg.LogLinkDir, entry.Name())
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, logDir+"/") {
			errs = append(errs, removeFile(link))
		}
	}
	return errors.Join(errs...)
}
