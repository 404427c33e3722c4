package cli

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

func logsCommand(e *env) *cobra.Command {
	var (
		container                    string
		follow, previous, timestamps bool
		tail, limit                  int64
		since                        time.Duration
	)
	cmd := &cobra.Command{
		Use:   "logs POD",
		Short: "Print a container's log",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			q := url.Values{}
			set := func(on bool, key, value string) {
				if on {
					q.Set(key, value)
				}
			}
			set(container != "", "container", container)
			set(follow, "follow", "true")
			set(previous, "previous", "true")
			set(timestamps, "timestamps", "true")
			set(tail >= 0, "tailLines", strconv.FormatInt(tail, 10))
			set(limit > 0, "limitBytes", strconv.FormatInt(limit, 10))
			set(since > 0, "sinceSeconds", strconv.FormatInt(max(1, int64(since/time.Second)), 10))
			pods, err := rest.ResourceByName("pods")
			if err != nil {
				return err
			}
			body, err := c.Stream(cmd.Context(), rest.Request{Method: http.MethodGet, Path: pods.ObjectPath(e.namespace, args[0]) + "/log", Query: q})
			if err != nil {
				return err
			}
			return copyOut(cmd, cmd.OutOrStdout(), body)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&container, "container", "c", "", "container; may be left out for a pod with one")
	f.BoolVarP(&follow, "follow", "f", false, "go on with what is written")
	f.BoolVarP(&previous, "previous", "p", false, "the instance before")
	f.BoolVar(&timestamps, "timestamps", false, "print each line's time")
	f.Int64Var(&tail, "tail", -1, "only the last so many lines; -1: all")
	f.Int64Var(&limit, "limit-bytes", 0, "at most so many bytes; 0: all")
	f.DurationVar(&since, "since", 0, "only what is younger, such as 10m; 0: all")
	return cmd
}
