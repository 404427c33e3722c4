package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
	"github.com/podplane/podplane/internal/shard"
)

func eventsCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "events [POD]",
		Short: "Show what was reported, of a namespace or of one pod",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			r, err := rest.ResourceByName("events")
			if err != nil {
				return err
			}
			req := rest.Request{Method: http.MethodGet, Path: r.Path(e.namespace), Query: url.Values{}}
			if len(args) == 1 {
				req.Query.Set("fieldSelector", "involvedObject.name="+args[0])
			}
			data, err := c.Do(cmd.Context(), req)
			if err != nil {
				return err
			}
			return printObjects(cmd.OutOrStdout(), r, data, "", false)
		},
	}
}

func servicesCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "services",
		Short: "Show each replica of each service: what it works on, address, version, health",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			list, err := rest.Services(cmd.Context(), c)
			if err != nil {
				return err
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 3, ' ', 0)
			fmt.Fprintln(tw, "SERVICE\tNODE\tINSTANCE\tVERSION\tREADY\tSHARDS\tGRPC\tHTTP\tUP\tMESSAGE")
			for _, s := range list {
				up := "<unknown>"
				if t, err := time.Parse(time.RFC3339Nano, s.StartedAt); err == nil {
					up = time.Since(t).Round(time.Second).String()
				}
				fmt.Fprintln(tw, strings.Join([]string{
					s.Service, s.Node, s.Instance, s.Version,
					strconv.FormatBool(s.Ready), shards(s), s.GRPCAddress, s.HTTPAddress, up, s.Message,
				}, "\t"))
			}
			return tw.Flush()
		},
	}
}

// shards says what part of its service's work a replica does.
func shards(s rest.Service) string {
	switch s.Service {
	case "gateway":
		return "-"
	case "pleg", "evictd":
		if len(s.Shards) == 0 {
			return "spare"
		}
		return "leads"
	}
	return fmt.Sprintf("%d/%d", len(s.Shards), shard.Count)
}

func lifecycleCommand(e *env) *cobra.Command {
	var follow bool
	var since string
	cmd := &cobra.Command{
		Use:   "lifecycle [POD]",
		Short: "Show the journal of what the runtime did to containers",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			q := url.Values{"namespace": {e.namespace}}
			if len(args) == 1 {
				q.Set("name", args[0])
			}
			if follow {
				q.Set("follow", "true")
			}
			if since != "" {
				q.Set("since", since)
			}
			body, err := c.Stream(cmd.Context(), rest.Request{Method: http.MethodGet, Path: "/podplane/v1/lifecycle", Query: q})
			if err != nil {
				return err
			}
			defer func() { _ = body.Close() }()
			dec := json.NewDecoder(body)
			for {
				var line struct {
					Event rest.Lifecycle `json:"event"`
				}
				if err := dec.Decode(&line); err != nil {
					return endOfStream(cmd, err)
				}
				fmt.Fprintln(cmd.OutOrStdout(), line.Event)
			}
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	cmd.Flags().StringVar(&since, "since", "", "an RFC 3339 time or a duration back from now, such as 10m; empty: all that is kept")
	return cmd
}
