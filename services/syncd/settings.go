package syncd

import (
	"context"
	"sync"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
)

// defaultRuntime is the scheme of container IDs until the runtime has told its name.
const defaultRuntime = "containerd"

// settings asks the runtime about itself when that is first needed, and remembers the answers: the runtime may be away when syncd starts.
type settings struct {
	runtime cri.Health

	mu     sync.Mutex
	name   string
	driver cri.CgroupDriver
	// handlers is nil until the runtime has told.
	handlers map[string]cri.HandlerFeatures
}

// RuntimeName is the runtime's name.
func (s *settings) RuntimeName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name != "" {
		return s.name
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	v, err := s.runtime.Version(ctx)
	if err != nil || v.RuntimeName == "" {
		return defaultRuntime
	}
	s.name = v.RuntimeName
	return s.name
}

// features are what the runtime's handlers can do. They are asked for again until the runtime has told of any.
func (s *settings) features(ctx context.Context) (map[string]cri.HandlerFeatures, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handlers) > 0 {
		return s.handlers, nil
	}
	status, err := s.runtime.Status(ctx)
	if err != nil {
		return nil, err
	}
	s.handlers = status.Handlers
	return s.handlers, nil
}

// cgroupDriver is the runtime's cgroup driver. One that does not tell uses cgroupfs.
func (s *settings) cgroupDriver(ctx context.Context) (cri.CgroupDriver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driver != "" {
		return s.driver, nil
	}
	c, err := s.runtime.RuntimeConfig(ctx)
	switch {
	case err == nil && c.CgroupDriver != "":
		s.driver = c.CgroupDriver
	case err == nil, fault.Is(err, fault.Unimplemented):
		s.driver = cri.CgroupDriverCgroupfs
	default:
		return "", err
	}
	return s.driver, nil
}
