package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

func deleteCommand(e *env) *cobra.Command {
	var files []string
	var grace int64
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "delete (RESOURCE NAME... | -f FILE)",
		Short: "Delete objects, and wait until they are gone",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			targets, err := deleteTargets(cmd, e, files, args)
			if err != nil {
				return err
			}
			q := url.Values{}
			if grace >= 0 {
				q.Set("gracePeriodSeconds", strconv.FormatInt(grace, 10))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			var errs []error
			for _, t := range targets {
				if _, err := c.Do(ctx, rest.Request{Method: http.MethodDelete, Path: t.path, Query: q}); err != nil {
					errs = append(errs, err)
					continue
				}
				if wait {
					err = waitGone(ctx, c, t)
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", t.label)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "manifest whose objects are deleted")
	cmd.Flags().Int64Var(&grace, "grace-period", -1, "seconds that a pod has to end; -1: its own")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the object is gone")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "give up after this time")
	return cmd
}

type target struct{ path, label string }

func deleteTargets(cmd *cobra.Command, e *env, files, args []string) ([]target, error) {
	if len(files) > 0 {
		if len(args) > 0 {
			return nil, fmt.Errorf("name objects or give -f, not both")
		}
		docs, err := readManifests(files, cmd.InOrStdin())
		if err != nil {
			return nil, err
		}
		var ts []target
		for _, d := range docs {
			r, err := rest.ResourceByKind(d.object.APIVersion, d.object.Kind)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", d.origin, err)
			}
			ns := d.object.Namespace
			if ns == "" {
				ns = e.namespace
			}
			ts = append(ts, targetOf(r, ns, d.object.Name))
		}
		return ts, nil
	}
	if len(args) < 2 {
		return nil, fmt.Errorf("want RESOURCE NAME..., such as `podplane delete pod web`")
	}
	r, err := rest.ResourceByName(args[0])
	if err != nil {
		return nil, err
	}
	var ts []target
	for _, name := range args[1:] {
		ts = append(ts, targetOf(r, e.namespace, name))
	}
	return ts, nil
}

func targetOf(r rest.Resource, namespace, name string) target {
	return target{path: r.ObjectPath(namespace, name), label: strings.ToLower(r.Kind) + "/" + name}
}

// waitGone asks until the object is not found; ctx bounds it.
func waitGone(ctx context.Context, c *rest.Client, t target) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.Do(ctx, rest.Request{Method: http.MethodGet, Path: t.path})
		if rest.IsNotFound(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still being deleted: %w; `podplane get` shows what it waits for", t.label, ctx.Err())
		case <-tick.C:
		}
	}
}
