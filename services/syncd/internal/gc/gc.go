// Package gc keeps what pods leave on the node within bounds: it rotates the logs of containers and removes the directories of pods that nobody knows any more.
// Dead containers and sandboxes are the workers' own business (package plan).
//
// # Bounds
//
// A container's log has at most Files files of about MaxSize bytes each, of which all but the newest two are compressed: between two looks (Period) a
// log may grow beyond that. One file is worked on at a time. What fails is tried again at the next look. Only logs of the node's own running containers are touched.
package gc

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

// Runtime is what a Collector needs of the container runtime.
type Runtime interface {
	ListContainers(ctx context.Context, filter cri.Filter) ([]pod.Container, error)
	ReopenContainerLog(ctx context.Context, id string) error
}

// Config is a Collector's settings.
type Config struct {
	PodLogDir string
	// LogLinkDir has links to logs; those that lead to what is gone are removed. Empty: there are none.
	LogLinkDir string
	// Root has the pods' directories, below pods.
	Root string
	// MaxSize is how large a log grows before it is rotated; Files is how many files of it are kept, with the current one.
	MaxSize int64
	Files   int
	// Period is how often the logs are looked at, OrphanPeriod the pods' directories.
	Period       time.Duration
	OrphanPeriod time.Duration
}

// Pods knows which pods there are.
type Pods interface {
	// Known says whether a pod is wished for or still being ended.
	Known(uid string) bool
	// Owns says whether the pod is this replica's to work on; others are left alone.
	Owns(uid string) bool
	// Forget removes what an unknown pod left on the node.
	Forget(ctx context.Context, uid, logDir string) error
}

// Collector does the work. Make one with New and run it.
type Collector struct {
	cfg     Config
	runtime Runtime
	pods    Pods
	log     *slog.Logger
	now     func() time.Time
}

// New makes a Collector.
func New(cfg Config, runtime Runtime, pods Pods, log *slog.Logger) *Collector {
	if cfg.Period <= 0 {
		cfg.Period = 10 * time.Second
	}
	if cfg.OrphanPeriod <= 0 {
		cfg.OrphanPeriod = time.Minute
	}
	return &Collector{cfg: cfg, runtime: runtime, pods: pods, log: log, now: time.Now}
}

// Run works until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	logs, orphans := time.NewTicker(c.cfg.Period), time.NewTicker(c.cfg.OrphanPeriod)
	defer logs.Stop()
	defer orphans.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-logs.C:
			if err := c.Rotate(ctx); err != nil && ctx.Err() == nil {
				c.log.WarnContext(ctx, "logs can't be rotated", slog.Any("error", err))
			}
		case <-orphans.C:
			if err := errors.Join(c.RemoveOrphans(ctx), c.RemoveDeadLinks()); err != nil && ctx.Err() == nil {
				c.log.WarnContext(ctx, "what pods that are gone left can't be removed", slog.Any("error", err))
			}
		}
	}
}

// RemoveDeadLinks removes the links to logs that are gone.
func (c *Collector) RemoveDeadLinks() error {
	if c.cfg.LogLinkDir == "" {
		return nil
	}
	entries, err := os.ReadDir(c.cfg.LogLinkDir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		link := filepath.Join(c.cfg.LogLinkDir, entry.Name())
		to, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(to, c.cfg.PodLogDir+"/") {
			continue // somebody else's
		}
		if _, err := os.Stat(to); os.IsNotExist(err) {
			errs = append(errs, os.Remove(link))
		}
	}
	return errors.Join(errs...)
}

// RemoveOrphans removes the directories of pods that nobody knows.
func (c *Collector) RemoveOrphans(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(c.cfg.Root, "pods"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		uid := entry.Name()
		info, err := entry.Info()
		if err != nil || !info.IsDir() || !c.pods.Owns(uid) || c.pods.Known(uid) {
			continue
		}
		if c.now().Sub(info.ModTime()) < c.cfg.OrphanPeriod {
			continue // perhaps the pod is only just being made
		}
		errs = append(errs, c.pods.Forget(ctx, uid, c.logDirOf(uid)))
	}
	return errors.Join(errs...)
}

// logDirOf finds the log directory of a pod of which only the UID is known.
func (c *Collector) logDirOf(uid string) string {
	entries, err := os.ReadDir(c.cfg.PodLogDir)
	if err != nil {
		return ""
	}
	for _, entry := range entries {
		if entry.IsDir() && uidOf(entry.Name()) == uid {
			return filepath.Join(c.cfg.PodLogDir, entry.Name())
		}
	}
	return ""
}

// uidOf returns the last part of <namespace>_<name>_<uid>.
func uidOf(dir string) string {
	parts := strings.SplitN(dir, "_", 3)
	if len(parts) != 3 {
		return ""
	}
	return parts[2]
}

// logFile is the log of one container instance.
type logFile struct {
	path      string
	uid       string
	container string
	attempt   uint32
}

// Rotate rotates the logs that are too large.
func (c *Collector) Rotate(ctx context.Context) error {
	large, err := c.largeLogs()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range large {
		if err := ctx.Err(); err != nil {
			return err
		}
		errs = append(errs, c.rotate(ctx, f))
	}
	return errors.Join(errs...)
}

// largeLogs stats the current logs of all pods.
func (c *Collector) largeLogs() ([]logFile, error) {
	pods, err := os.ReadDir(c.cfg.PodLogDir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var large []logFile
	for _, p := range pods {
		uid := uidOf(p.Name())
		if !p.IsDir() || uid == "" || !c.pods.Owns(uid) || !c.pods.Known(uid) {
			continue
		}
		containers, err := os.ReadDir(filepath.Join(c.cfg.PodLogDir, p.Name()))
		if err != nil {
			continue // it went meanwhile
		}
		for _, container := range containers {
			dir := filepath.Join(c.cfg.PodLogDir, p.Name(), container.Name())
			large = append(large, c.largeIn(dir, logFile{uid: uid, container: container.Name()})...)
		}
	}
	return large, nil
}

func (c *Collector) largeIn(dir string, of logFile) []logFile {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var large []logFile
	for _, entry := range entries {
		name, current := strings.CutSuffix(entry.Name(), ".log")
		attempt, err := strconv.ParseUint(name, 10, 32)
		if !current || err != nil {
			continue
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && info.Size() > c.cfg.MaxSize {
			of.path, of.attempt = filepath.Join(dir, entry.Name()), uint32(attempt)
			large = append(large, of)
		}
	}
	return large
}
