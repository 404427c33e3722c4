package up

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

// deleteAll deletes every pod of this node and waits until all are gone. It returns how
// many there were.
func (s *stack) deleteAll(ctx context.Context) (int, error) {
	c, err := s.client()
	if err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		pods, err := listPods(ctx, c, s.cfg.Node)
		if err != nil {
			return len(seen), err
		}
		if len(pods) == 0 {
			return len(seen), nil
		}
		for i := range pods {
			p := &pods[i]
			if seen[string(p.UID)] {
				continue
			}
			if err := deletePod(ctx, c, p); err != nil {
				return len(seen), err
			}
			seen[string(p.UID)] = true
		}
		select {
		case <-ctx.Done():
			return len(seen), fmt.Errorf("wait until pods are gone: %w; left: %s", ctx.Err(), names(pods))
		case <-tick.C:
		}
	}
}

func listPods(ctx context.Context, c *rest.Client, node string) ([]corev1.Pod, error) {
	data, err := c.Do(ctx, rest.Request{Method: http.MethodGet, Path: "/api/v1/pods", Query: url.Values{"node": {node}}})
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("decode list of pods: %w", err)
	}
	return list.Items, nil
}

// fromManifest is the annotation of pods that come from the manifest directory.
const fromManifest = "kubernetes.io/config.source"

// deletePod has a pod deleted. One from a manifest can't be: syncd, which runs
// without a manifest directory now, ends it by itself.
func deletePod(ctx context.Context, c *rest.Client, p *corev1.Pod) error {
	r, err := rest.ResourceByName("pods")
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, rest.Request{Method: http.MethodDelete, Path: r.ObjectPath(p.Namespace, p.Name)})
	if rest.IsNotFound(err) || rest.IsForbidden(err) && p.Annotations[fromManifest] != "" {
		return nil
	}
	return err
}

func names(pods []corev1.Pod) string {
	out := make([]string, len(pods))
	for i := range pods {
		out[i] = pods[i].Namespace + "/" + pods[i].Name
	}
	return strings.Join(out, ", ")
}
