package access

import (
	"fmt"
	"slices"
	"strings"
)

// Policy says which images are free for all pods once they are on the node.
type Policy string

// The policies, by Kubernetes' names.
const (
	// NeverVerify: all of them.
	NeverVerify Policy = "NeverVerify"
	// NeverVerifyPreloadedImages: those that were not pulled by this node agent.
	NeverVerifyPreloadedImages Policy = "NeverVerifyPreloadedImages"
	// NeverVerifyAllowlistedImages: those of a list.
	NeverVerifyAllowlistedImages Policy = "NeverVerifyAllowlistedImages"
	// AlwaysVerify: none.
	AlwaysVerify Policy = "AlwaysVerify"
)

// Policies are all of them.
var Policies = []Policy{NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify}

// Rule is a policy with its list.
type Rule struct {
	Policy Policy
	// Allowlist has repositories without tag and digest; one that ends with "/*" stands for all below it.
	Allowlist []string
}

// Validate checks the rule.
func (r Rule) Validate() error {
	if !slices.Contains(Policies, r.Policy) {
		return fmt.Errorf("unknown policy %q, supported: %v", r.Policy, Policies)
	}
	if len(r.Allowlist) > 0 && r.Policy != NeverVerifyAllowlistedImages {
		return fmt.Errorf("a list of images is only for policy %s", NeverVerifyAllowlistedImages)
	}
	for _, pattern := range r.Allowlist {
		name := strings.TrimSuffix(pattern, "/*")
		switch {
		case strings.TrimSpace(pattern) != pattern, name == "", strings.ContainsAny(name, "*"):
			return fmt.Errorf("%q is not a repository, nor a path with /* at its end", pattern)
		case strings.Contains(name, "@"), strings.LastIndexByte(name, ':') > strings.LastIndexByte(name, '/') && name == pattern:
			return fmt.Errorf("%q must have neither tag nor digest", pattern)
		}
	}
	return nil
}

// verify says whether a pod must show credentials for an image. Names are the repository's as the pod gives it and with its host spelt out.
func (r Rule) verify(names []string, pulledHere bool) bool {
	switch r.Policy {
	case NeverVerify:
		return false
	case NeverVerifyPreloadedImages:
		return pulledHere
	case NeverVerifyAllowlistedImages:
		return !slices.ContainsFunc(names, r.listed)
	default:
		return true
	}
}

func (r Rule) listed(repository string) bool {
	return slices.ContainsFunc(r.Allowlist, func(pattern string) bool {
		if below, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(repository, below)
		}
		return repository == pattern
	})
}
