// Package credprovider gets registry credentials from plugins, by the kubelet's protocol: a program is started with a request on its standard input and answers on its standard output.
//
// # Guarantees
//
// A plugin is only asked about images that it is configured for, at most once at a time for one image, and not again while its last answer is valid. One that does not answer within a
// minute is killed with everything that it started. What it answers is kept in memory only. Its environment is that of this process without Podplane's own variables.
//
// # Bounds
//
// An answer has at most 1 MiB; a thousand answers of each plugin are kept. A plugin that fails is asked again at the next pull.
package credprovider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/podplane/podplane/services/syncd/internal/keylock"
)

// Auth is one credential of an answer.
type Auth struct {
	// Pattern is the registry that it is for: host[:port][/path], with wildcards in the host.
	Pattern            string
	Username, Password string
}

// Set is all plugins of a node. Its methods may be called from many goroutines.
type Set struct {
	plugins []*plugin
	match   func(pattern, image string) bool
	log     *slog.Logger
}

// plugin is a provider that can be asked.
type plugin struct {
	provider
	path  string
	locks keylock.Locks
	cache cache
	now   func() time.Time
}

// Options say where the plugins are.
type Options struct {
	// Config is the configuration file, or a directory of them, BinDir where the programs are.
	Config, BinDir string
	// Match says whether an image, given without tag and digest, is one that the pattern is about.
	Match func(pattern, image string) bool
	Log   *slog.Logger
	// Now is the clock; nil: the real one.
	Now func() time.Time
}

// Load reads the configuration and checks that each plugin is there.
func Load(o Options) (*Set, error) {
	providers, err := readConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("configuration of credential providers: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Set{match: o.Match, log: o.Log}
	for i := range providers {
		path, err := providers[i].executable(o.BinDir)
		if err != nil {
			return nil, err
		}
		s.plugins = append(s.plugins, &plugin{provider: providers[i], path: path, now: o.Now})
	}
	return s, nil
}

// Get asks the plugins that are configured for the image, which is given without tag and digest. What fails is in the error; what the others answered counts all the same.
func (s *Set) Get(ctx context.Context, image string) ([]Auth, error) {
	if s == nil {
		return nil, nil
	}
	var all []Auth
	var errs []error
	for _, p := range s.plugins {
		if !slices.ContainsFunc(p.MatchImages, func(pattern string) bool { return s.match(pattern, image) }) {
			continue
		}
		auths, err := p.get(ctx, image, s.log)
		if err != nil {
			errs = append(errs, fmt.Errorf("credential provider %s: %w", p.Name, err))
		}
		all = append(all, auths...)
	}
	return all, errors.Join(errs...)
}

func (p *plugin) get(ctx context.Context, image string, log *slog.Logger) ([]Auth, error) {
	if auths, ok := p.cache.get(image, p.now()); ok {
		return auths, nil
	}
	unlock, err := p.locks.Lock(ctx, image)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if auths, ok := p.cache.get(image, p.now()); ok { // somebody else has asked
		return auths, nil
	}
	answer, err := p.ask(ctx, image, log)
	if err != nil {
		return nil, err
	}
	key, ok := keyOf(answer.CacheKeyType, image)
	if !ok {
		return nil, fmt.Errorf("answered with the unknown cacheKeyType %q", answer.CacheKeyType)
	}
	valid := p.cacheFor()
	if answer.CacheDuration != nil {
		valid = answer.CacheDuration.Duration
	}
	auths := make([]Auth, 0, len(answer.Auth))
	for pattern, a := range answer.Auth {
		auths = append(auths, Auth{Pattern: pattern, Username: a.Username, Password: a.Password})
	}
	p.cache.put(key, auths, p.now(), valid)
	return auths, nil
}
