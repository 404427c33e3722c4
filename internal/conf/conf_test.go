package conf_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/conf"
	"github.com/podplane/podplane/internal/fault"
)

// Common is embedded and exported, as daemon.Config is.
type Common struct {
	NATSURL string        `json:"natsURL" usage:"where NATS is"`
	Timeout time.Duration `json:"timeout"`
}

func (c *Common) Validate(path *field.Path) field.ErrorList {
	if c.Timeout <= 0 {
		return field.ErrorList{field.Invalid(path.Child("timeout"), c.Timeout, "must be more than 0s")}
	}
	return nil
}

type limits struct {
	Pods int `json:"pods"`
}

func (l *limits) Validate(path *field.Path) field.ErrorList {
	if l.Pods < 1 {
		return field.ErrorList{field.Invalid(path.Child("pods"), l.Pods, "must be at least 1")}
	}
	return nil
}

type config struct {
	Common
	Common2
	Token  string            `json:"token" secret:"true"`
	Dirs   []string          `json:"dirs"`
	Labels map[string]string `json:"labels"`
	Limits limits            `json:"limits"`
	Debug  bool              `json:"debug"`
	Ratio  float64           `json:"ratio"`
	Hidden string            `json:"-"`
}

// Common2 is a second one.
type Common2 struct {
	HTTPListen string `json:"httpListen"`
}

func defaults() *config {
	return &config{Common: Common{Timeout: time.Second}, Common2: Common2{HTTPListen: "127.0.0.1:0"}, Limits: limits{Pods: 110}, Dirs: []string{"/a"}}
}

func load(t *testing.T, c *config, file string, env, args []string) (*conf.Loader, error) {
	t.Helper()
	name := ""
	if file != "" {
		name = filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := conf.New("syncd", c)
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	l.Bind(fs)
	if err := fs.Parse(args); err != nil {
		return l, err
	}
	return l, l.Load(name, env)
}

func TestLaterWins(t *testing.T) {
	c := defaults()
	_, err := load(
		t, c, "httpListen: file:1\nlimits: {pods: 5}\ndirs: [b, c]\nlabels: {a: b}\nratio: 0.5\ndebug: true\n",
		[]string{"PODPLANE_HTTP_LISTEN=all:1", "PODPLANE_LIMITS_PODS=6", "PODPLANE_SYNCD_LIMITS_PODS=7", "PODPLANE_OTHER=x", "HOME=/"},
		[]string{"--dirs=d", "--token=hush"},
	)
	if err != nil {
		t.Fatal(err)
	}
	if c.HTTPListen != "all:1" || c.Limits.Pods != 7 || !slices.Equal(c.Dirs, []string{"d"}) || c.Labels["a"] != "b" || c.Token != "hush" || !c.Debug || c.Ratio != .5 {
		t.Errorf("%+v", c)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, file, want string
		env, args        []string
	}{
		{name: "unknown key", file: "nope: 1\n", want: `unknown key "nope"`},
		{name: "unknown nested", file: "limits: {nope: 1}\n", want: `unknown key "limits.nope"`},
		{name: "duplicate key", file: "token: a\ntoken: b\n", want: "token"},
		{name: "wrong type", file: "limits: {pods: many}\n", want: "limits.pods"},
		{name: "number for a string", file: "token: 5\n", want: "token: must be a string"},
		{name: "list for a number", file: "limits: {pods: [1]}\n", want: "limits.pods: must be a number"},
		{name: "section is no table", file: "limits: 3\n", want: "limits: must be a table"},
		{name: "not a table", file: "- 1\n", want: "must hold keys and values"},
		{name: "hidden", file: "hidden: x\n", want: `unknown key "hidden"`},
		{name: "unknown variable", env: []string{"PODPLANE_SYNCD_NOPE=1"}, want: "PODPLANE_SYNCD_NOPE"},
		{name: "bad variable", env: []string{"PODPLANE_SYNCD_DEBUG=maybe"}, want: "true or false"},
		{name: "unknown flag", args: []string{"--nope"}, want: "nope"},
		{name: "bad flag", args: []string{"--limits-pods=x"}, want: "limits-pods"},
		{name: "embedded validation once", file: "timeout: -1s\n", want: `"syncd" is invalid: timeout: Invalid value: must be more than 0s`},
		{name: "duration as a number", file: "timeout: 5\n", want: "timeout: must be a duration"},
		{name: "validation", file: "limits: {pods: 0}\n", want: "limits.pods: Invalid value: 0: must be at least 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(t, defaults(), c.file, c.env, c.args)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestValidationNamesFields(t *testing.T) {
	_, err := load(t, defaults(), "limits: {pods: -1}\n", nil, nil)
	if f := fault.Fields(err); !fault.Is(err, fault.Invalid) || len(f) != 1 || f[0].Path != "limits.pods" {
		t.Errorf("%v %+v", err, f)
	}
}

func TestPrintMasksSecretsAndLoadsAgain(t *testing.T) {
	l, err := load(t, defaults(), "token: hush\nlabels: {a: b}\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := l.Print()
	if err != nil || strings.Contains(string(out), "hush") || !strings.Contains(string(out), conf.Masked) {
		t.Fatalf("%s %v", out, err)
	}
	again := defaults()
	if _, err := load(t, again, string(out), nil, nil); err != nil || again.Labels["a"] != "b" || again.Limits.Pods != 110 {
		t.Errorf("%+v %v", again, err)
	}
}

func FuzzLoadFile(f *testing.F) {
	for _, s := range []string{"", "limits: {pods: 5}", "dirs: [a]", "labels: {a: 1}", "ratio: 1e9", "token: null", "limits: null", "a: &a [*a]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(name, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		c := defaults()
		if err := conf.New("syncd", c).Load(name, nil); err == nil && c.Limits.Pods < 1 {
			t.Errorf("%q passed validation: %+v", s, c)
		}
	})
}
