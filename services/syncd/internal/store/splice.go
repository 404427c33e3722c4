package store

import (
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/services/syncd/internal/rawjson"
)

func podKey(node, uid string) string { return bus.PodKey(node, uid) }

// spliceDeletion puts the deletion marks of pod into the stored JSON, so that fields of a newer version survive.
func spliceDeletion(stored []byte, pod *v1.Pod) ([]byte, error) {
	o, err := rawjson.Parse(stored)
	if err != nil {
		return nil, fmt.Errorf("stored pod %s: %w", pod.UID, err)
	}
	err = o.Change("metadata", func(m rawjson.Object) error {
		for k, v := range map[string]any{
			"deletionTimestamp": pod.DeletionTimestamp, "deletionGracePeriodSeconds": pod.DeletionGracePeriodSeconds, "generation": pod.Generation,
		} {
			if err := m.Set(k, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("stored pod %s: %w", pod.UID, err)
	}
	return o.Bytes()
}

// seconds does not overflow on what a client may ask for.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt32)) * time.Second
}
