package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

func waitCommand(e *env) *cobra.Command {
	var condition string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait POD --for CONDITION",
		Short: "Wait until a pod is Ready, has a phase, or is gone",
		Long: `Wait until a pod meets a condition, following its changes:
  --for Ready        a condition is True: Ready, Initialized, ContainersReady, ...
  --for Succeeded    a phase: Pending, Running, Succeeded, Failed
  --for deleted      the pod is gone`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := waitFor(ctx, c, e.namespace, args[0], condition); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "pod/%s %s\n", args[0], condition)
			return nil
		},
	}
	cmd.Flags().StringVar(&condition, "for", "Ready", "what to wait for")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "give up after this time")
	return cmd
}

// waitFor follows the pod by a watch; where a watch ends early, it begins anew.
func waitFor(ctx context.Context, c *rest.Client, namespace, name, condition string) error {
	last := "no such pod"
	for {
		met, state, err := waitOnce(ctx, c, namespace, name, condition)
		if state != "" {
			last = state
		}
		switch {
		case met:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("pod %s/%s is not %s in time: %s", namespace, name, condition, last)
		case err != nil:
			return err
		}
	}
}

// waitOnce reads one watch to its end. It says whether the condition was met
// and in which state the pod was last.
func waitOnce(ctx context.Context, c *rest.Client, namespace, name, condition string) (met bool, state string, err error) {
	pods, err := rest.ResourceByName("pods")
	if err != nil {
		return false, "", err
	}
	q := url.Values{"fieldSelector": {"metadata.name=" + name}}
	var list corev1.PodList
	if err := c.Into(ctx, rest.Request{Method: http.MethodGet, Path: pods.Path(namespace), Query: q}, &list); err != nil {
		return false, "", err
	}
	if len(list.Items) == 0 && condition == "deleted" {
		return true, "", nil
	}
	for i := range list.Items {
		if meets(&list.Items[i], condition) {
			return true, "", nil
		}
		state = podStatus(&list.Items[i])
	}
	q.Set("watch", "true")
	q.Set("resourceVersion", list.ResourceVersion)
	body, err := c.Stream(ctx, rest.Request{Method: http.MethodGet, Path: pods.Path(namespace), Query: q})
	if err != nil {
		return false, state, err
	}
	defer func() { _ = body.Close() }()
	return readUntil(body, state, condition)
}

func readUntil(body io.Reader, state, condition string) (bool, string, error) {
	dec := json.NewDecoder(body)
	for {
		var ev struct {
			Type   string     `json:"type"`
			Object corev1.Pod `json:"object"`
		}
		if err := dec.Decode(&ev); err != nil {
			return false, state, nil // the watch ended; the caller decides whether to begin anew
		}
		if ev.Type == "DELETED" {
			return condition == "deleted", "deleted", nil
		}
		if ev.Type == "ERROR" {
			return false, state, nil
		}
		if meets(&ev.Object, condition) {
			return true, state, nil
		}
		state = podStatus(&ev.Object)
	}
}

func meets(p *corev1.Pod, condition string) bool {
	if strings.EqualFold(string(p.Status.Phase), condition) {
		return true
	}
	for _, c := range p.Status.Conditions {
		if strings.EqualFold(string(c.Type), condition) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
