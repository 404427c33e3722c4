package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version implements [Health].
func (c *Client) Version(ctx context.Context) (Version, error) {
	op := c.runtimeOp(opVersion, "")
	resp, err := invoke(ctx, c, op, c.runtime.Version, &runtimeapi.VersionRequest{})
	if err != nil {
		return Version{}, err
	}
	return Version{
		RuntimeName: resp.GetRuntimeName(), RuntimeVersion: resp.GetRuntimeVersion(), RuntimeAPIVersion: resp.GetRuntimeApiVersion(),
	}, nil
}

// Status implements [Health].
func (c *Client) Status(ctx context.Context) (Status, error) {
	op := c.runtimeOp(opStatus, "")
	resp, err := invoke(ctx, c, op, c.runtime.Status, &runtimeapi.StatusRequest{})
	if err != nil {
		return Status{}, err
	}
	s := Status{
		Handlers:                  make(map[string]HandlerFeatures, len(resp.GetRuntimeHandlers())),
		SupplementalGroupsPolicy:  resp.GetFeatures().GetSupplementalGroupsPolicy(),
		UserNamespacesHostNetwork: resp.GetFeatures().GetUserNamespacesHostNetwork(),
	}
	for _, c := range resp.GetStatus().GetConditions() {
		s.Conditions = append(s.Conditions, Condition{Type: c.GetType(), Status: c.GetStatus(), Reason: c.GetReason(), Message: c.GetMessage()})
	}
	for _, h := range resp.GetRuntimeHandlers() {
		s.Handlers[h.GetName()] = HandlerFeatures{
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(),
			UserNamespaces:          h.GetFeatures().GetUserNamespaces(),
		}
	}
	return s, nil
}

// RuntimeConfig implements [Health].
func (c *Client) RuntimeConfig(ctx context.Context) (RuntimeConfig, error) {
	op := c.runtimeOp(opRuntimeConfig, "")
	resp, err := invoke(ctx, c, op, c.runtime.RuntimeConfig, &runtimeapi.RuntimeConfigRequest{})
	if err != nil || resp.GetLinux() == nil {
		return RuntimeConfig{}, err
	}
	if resp.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD {
		return RuntimeConfig{CgroupDriver: CgroupDriverSystemd}, nil
	}
	return RuntimeConfig{CgroupDriver: CgroupDriverCgroupfs}, nil
}
