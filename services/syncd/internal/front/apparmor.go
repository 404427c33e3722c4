package front

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Files by which the kernel tells of AppArmor.
const (
	appArmorEnabled  = "/sys/module/apparmor/parameters/enabled"
	appArmorProfiles = "/sys/kernel/security/apparmor/profiles"
)

// appArmor says why a profile can't be used on this host, "" being the runtime's default.
func appArmor(profile string) error {
	enabled, err := os.ReadFile(appArmorEnabled)
	if err != nil || !strings.HasPrefix(string(enabled), "Y") {
		return errors.New("AppArmor is not enabled on the host")
	}
	if profile == "" {
		return nil
	}
	f, err := os.Open(appArmorProfiles)
	if err != nil {
		return fmt.Errorf("the list of AppArmor profiles can't be read: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, _, ok := strings.Cut(lines.Text(), " ("); ok && name == profile {
			return nil
		}
	}
	return fmt.Errorf("AppArmor profile %q is not loaded", profile)
}
