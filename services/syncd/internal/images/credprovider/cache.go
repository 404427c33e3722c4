package credprovider

import (
	"strings"
	"sync"
	"time"
)

const (
	// purgePeriod is how often what is no longer valid is removed, maxCached how much is kept for one plugin.
	purgePeriod = 15 * time.Minute
	maxCached   = 1000
)

// Values of cacheKeyType.
const (
	keyImage    = "Image"
	keyRegistry = "Registry"
	keyGlobal   = "Global"
)

// cache holds what one plugin answered, for as long as it said.
type cache struct {
	mu      sync.Mutex
	entries map[string]cached
	purged  time.Time
}

type cached struct {
	auths   []Auth
	expires time.Time
}

// keyOf is the key under which an answer of this type is kept.
func keyOf(keyType, image string) (key string, ok bool) {
	switch keyType {
	case keyImage:
		return "image " + image, true
	case keyRegistry:
		host, _, _ := strings.Cut(image, "/")
		return "registry " + host, true
	case keyGlobal:
		return "global", true
	}
	return "", false
}

// get looks for an answer for the image, then for one for its registry, then for one for all.
func (c *cache) get(image string, now time.Time) ([]Auth, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range []string{keyImage, keyRegistry, keyGlobal} {
		key, _ := keyOf(t, image)
		if e, ok := c.entries[key]; ok && now.Before(e.expires) {
			return e.auths, true
		}
	}
	return nil, false
}

func (c *cache) put(key string, auths []Auth, now time.Time, valid time.Duration) {
	if valid <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= maxCached {
		c.entries = make(map[string]cached)
	}
	if now.Sub(c.purged) >= purgePeriod {
		for k, e := range c.entries {
			if !now.Before(e.expires) {
				delete(c.entries, k)
			}
		}
		c.purged = now
	}
	c.entries[key] = cached{auths: auths, expires: now.Add(valid)}
}
