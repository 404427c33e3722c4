package api

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

// selector makes a filter of Kubernetes' label and field selectors; known are the fields that the resource can be selected by. Nil matches
// everything.
func selector(labelSelector, fieldSelector string, known []string) (func(*watchcache.Object) bool, error) {
	if labelSelector == "" && fieldSelector == "" {
		return nil, nil
	}
	byLabel, err := labels.Parse(labelSelector)
	if err != nil {
		return nil, fault.New(fault.BadRequest, "labelSelector can't be read: %w", err)
	}
	byField, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return nil, fault.New(fault.BadRequest, "fieldSelector can't be read: %w", err)
	}
	for _, r := range byField.Requirements() {
		if !slices.Contains(known, r.Field) {
			return nil, fault.New(fault.BadRequest, "field label not supported: %s, supported: %s", r.Field, strings.Join(known, ", "))
		}
	}
	return func(o *watchcache.Object) bool {
		return byLabel.Matches(labels.Set(o.Labels)) && byField.Matches(fields.Set(o.Fields))
	}, nil
}
