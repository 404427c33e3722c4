package incontainer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
)

const healthTimeout = 3 * time.Second

type healthOptions struct{ url, addressFile, endpoint, path string }

func healthCommand() *cobra.Command {
	var o healthOptions
	cmd := &cobra.Command{
		Use: "health", Short: "Ask a service, or the runtime, whether it is well: for a container's health check", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.url, "url", "", "URL to get, such as http://127.0.0.1:9090/readyz")
	f.StringVar(&o.addressFile, "address-file", "/tmp/address", "file with the service's address, as its --address-file")
	f.StringVar(&o.path, "path", "/readyz", "path to get at that address")
	f.StringVar(&o.endpoint, "cri-endpoint", "", "ask this runtime instead")
	return cmd
}

func (o healthOptions) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if o.endpoint != "" {
		return runtimeHealth(ctx, o.endpoint)
	}
	url := o.url
	if url == "" {
		address, err := os.ReadFile(o.addressFile)
		if err != nil {
			return fmt.Errorf("find the service's address: %w", err)
		}
		url = "http://" + strings.TrimSpace(string(address)) + o.path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fault.New(fault.Unavailable, "%s answers %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

func runtimeHealth(ctx context.Context, endpoint string) error {
	client, err := cri.Dial(ctx, endpoint, cri.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{cri.ConditionRuntimeReady, cri.ConditionNetworkReady} {
		if c := status.Condition(kind); !c.Status {
			return fault.New(fault.Unavailable, "%s is false: %s: %s", kind, c.Reason, c.Message)
		}
	}
	return nil
}
