package syncd

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/images/access"
	"github.com/podplane/podplane/services/syncd/internal/images/credprovider"
	"github.com/podplane/podplane/services/syncd/internal/runtimeclass"
)

// Images is how images are pulled, and who may use them.
type Images struct {
	DockerConfig   string        `json:"dockerConfig" usage:"the node's own registry credentials (a Docker config.json); empty: config.json in the root directory, then .docker/config.json in the home directory"`
	ProviderConfig string        `json:"credentialProviderConfig" usage:"configuration of credential provider plugins, as the kubelet has it: a file or a directory of files; empty: none"`
	ProviderBinDir string        `json:"credentialProviderBinDir" usage:"directory of the credential provider plugins"`
	Verification   string        `json:"pullCredentialsVerificationPolicy" usage:"which images pods may use without credentials of their own once they are on the node: NeverVerify (all), NeverVerifyPreloadedImages (those that were not pulled here), NeverVerifyAllowlistedImages or AlwaysVerify (none)"`
	Allowlist      []string      `json:"preloadedImagesVerificationAllowlist" usage:"repositories that NeverVerifyAllowlistedImages is about; host/path/* stands for all below it"`
	PullQPS        int           `json:"registryPullQPS" usage:"pulls that may begin in a second, those over it wait; 0: no limit"`
	PullBurst      int           `json:"registryBurst" usage:"pulls that may begin at once when registryPullQPS is set"`
	PerClass       bool          `json:"runtimeClassInImageCriApi" usage:"tell the runtime for which runtime handler an image is pulled, for handlers that keep images of their own"`
	Progress       time.Duration `json:"pullProgress" usage:"how often an Event tells of a pull that goes on"`
}

// DefaultImages gives the settings where nothing is set.
func DefaultImages() Images {
	return Images{Verification: string(access.NeverVerifyPreloadedImages), PullBurst: 10, Progress: images.DefaultProgress}
}

// Validate checks the settings.
func (i *Images) Validate(path *field.Path) field.ErrorList {
	var list field.ErrorList
	if err := i.rule().Validate(); err != nil {
		list = append(list, field.Invalid(path.Child("pullCredentialsVerificationPolicy"), i.Verification, err.Error()))
	}
	if (i.ProviderConfig == "") != (i.ProviderBinDir == "") {
		list = append(list, field.Required(path.Child("credentialProviderConfig"), "it and credentialProviderBinDir need each other"))
	}
	if i.PullQPS < 0 {
		list = append(list, field.Invalid(path.Child("registryPullQPS"), i.PullQPS, "must be at least 0"))
	}
	if i.PullQPS > 0 && i.PullBurst < 1 {
		list = append(list, field.Invalid(path.Child("registryBurst"), i.PullBurst, "must be at least 1"))
	}
	if i.Progress < time.Second {
		list = append(list, field.Invalid(path.Child("pullProgress"), i.Progress.String(), "must be at least 1s"))
	}
	return list
}

func (i *Images) rule() access.Rule {
	return access.Rule{Policy: access.Policy(i.Verification), Allowlist: i.Allowlist}
}

// puller makes what pulls images.
func (n *node) puller(recorder images.Recorder) (*images.Puller, error) {
	c := &n.cfg.Images
	cfg := images.Config{Parallel: n.cfg.PullSlots, QPS: c.PullQPS, Burst: c.PullBurst, Progress: c.Progress, Log: n.deps.Log, NodeConfigs: []string{c.DockerConfig}}
	if classes := runtimeclass.Dir(n.cfg.RuntimeClassDir); c.PerClass {
		cfg.Handler = classes.Handler
	}
	var err error
	if c.DockerConfig == "" {
		cfg.NodeConfigs = images.NodeConfigFiles(n.cfg.Root, os.Getenv("HOME"))
	}
	if c.ProviderConfig != "" {
		cfg.Providers, err = credprovider.Load(credprovider.Options{
			Config: c.ProviderConfig, BinDir: c.ProviderBinDir, Match: images.MatchesRegistry, Log: n.deps.Log,
		})
		if err != nil {
			return nil, err
		}
	}
	if c.rule().Policy != access.NeverVerify {
		if cfg.Guard, err = access.Open(filepath.Join(n.cfg.Root, "image_manager"), c.rule()); err != nil {
			return nil, err
		}
	}
	if cfg.Metrics, err = images.NewMetrics(n.deps.Registry); err != nil {
		return nil, fmt.Errorf("register the metrics of images: %w", err)
	}
	return images.New(cfg, n.client, n.store, recorder), nil
}
