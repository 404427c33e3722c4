package conf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/internal/fault"
)

// Masked is printed in place of a secret that is set.
const Masked = "********"

// Validator is a configuration that knows its own rules.
type Validator interface {
	// Validate names each field that is wrong under path, and what is allowed.
	Validate(path *field.Path) field.ErrorList
}

// Loader fills one configuration. It is used once: New, Bind, Load.
type Loader struct {
	service  string
	target   any
	settings []setting
	flags    map[string]*flagValue
}

// New makes the loader of a service's configuration. target points to a struct that holds the defaults.
func New(service string, target any) *Loader {
	return &Loader{
		service: service, target: target, settings: settings(reflect.ValueOf(target).Elem(), ""),
		flags: map[string]*flagValue{},
	}
}

// Bind adds a flag for each setting. The flags take effect in Load.
func (l *Loader) Bind(fs *pflag.FlagSet) {
	for _, s := range l.settings {
		shown := text(s.value)
		if s.secret && shown != "" {
			shown = Masked
		}
		f := &flagValue{setting: s, shown: shown}
		l.flags[s.path] = f
		added := fs.VarPF(f, s.flag(), "", s.usage+" ["+l.envName(s)+"]")
		if s.value.Kind() == reflect.Bool {
			added.NoOptDefVal = "true"
		}
	}
}

// Load reads the file (none when the name is empty) and the environment (as in os.Environ), applies the flags and validates.
func (l *Loader) Load(file string, environ []string) error {
	if file != "" {
		if err := l.loadFile(file); err != nil {
			return fmt.Errorf("configuration file %s: %w", file, err)
		}
	}
	if err := l.loadEnv(environ); err != nil {
		return err
	}
	for _, s := range l.settings {
		f := l.flags[s.path]
		if f == nil || !f.set {
			continue
		}
		if err := setText(s.value, f.shown); err != nil {
			return fmt.Errorf("flag --%s: %w", s.flag(), err)
		}
	}
	return l.validate()
}

func (l *Loader) loadFile(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fault.Wrap(fault.Invalid, err)
	}
	asJSON, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return fault.Wrap(fault.Invalid, err)
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(asJSON))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return fault.Wrap(fault.Invalid, err)
	}
	if tree == nil {
		return nil
	}
	table, ok := tree.(map[string]any)
	if !ok {
		return fault.New(fault.Invalid, "must hold keys and values")
	}
	return l.apply(table, "")
}

// apply sets what the tree names, and refuses keys that no setting has.
func (l *Loader) apply(table map[string]any, prefix string) error {
	for _, key := range sortedKeys(table) {
		path := prefix + key
		i := slices.IndexFunc(l.settings, func(s setting) bool { return s.path == path })
		if i >= 0 {
			if err := setAny(l.settings[i].value, table[key]); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			continue
		}
		nested, isTable := table[key].(map[string]any)
		known := slices.ContainsFunc(l.settings, func(s setting) bool { return strings.HasPrefix(s.path, path+".") })
		if !known {
			return fault.New(fault.Invalid, "unknown key %q", path)
		}
		if !isTable {
			return fault.New(fault.Invalid, "%s: must be a table", path)
		}
		if err := l.apply(nested, path+"."); err != nil {
			return err
		}
	}
	return nil
}

func (l *Loader) envName(s setting) string {
	return "PODPLANE_" + strings.ToUpper(l.service) + "_" + s.env()
}

// loadEnv takes PODPLANE_<KEY> first, then PODPLANE_<SERVICE>_<KEY>. An unknown key of the service is an error; those of all services are not,
// because not every service has every key.
func (l *Loader) loadEnv(environ []string) error {
	env := map[string]string{}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(k, "PODPLANE_") {
			env[k] = v
		}
	}
	own := map[string]bool{}
	for _, s := range l.settings {
		own[l.envName(s)] = true
		for _, name := range []string{"PODPLANE_" + s.env(), l.envName(s)} {
			v, ok := env[name]
			if !ok {
				continue
			}
			if err := setText(s.value, v); err != nil {
				return fmt.Errorf("environment variable %s: %w", name, redact(s, err))
			}
		}
	}
	for _, name := range sortedKeys(env) {
		if strings.HasPrefix(name, "PODPLANE_"+strings.ToUpper(l.service)+"_") && !own[name] {
			return fault.New(fault.Invalid, "environment variable %s: unknown key", name)
		}
	}
	return nil
}

func redact(s setting, err error) error {
	if !s.secret {
		return err
	}
	return fault.New(fault.KindOf(err), "the value is not a %s", kindWord(s.value))
}

// validate asks the struct and those in it; what an embedded struct lends to the outer one is asked once.
func (l *Loader) validate() error {
	var list field.ErrorList
	collect(reflect.ValueOf(l.target).Elem(), nil, &list)
	seen := map[string]bool{}
	list = slices.DeleteFunc(list, func(e *field.Error) bool {
		dup := seen[e.Error()]
		seen[e.Error()] = true
		return dup
	})
	return fault.Invalidate(fault.Object{Resource: "configuration", Name: l.service}, list)
}

func collect(v reflect.Value, path *field.Path, list *field.ErrorList) {
	if c, ok := v.Addr().Interface().(Validator); ok {
		*list = append(*list, c.Validate(path)...)
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, ok := keyOf(f)
		if !ok || !isSection(v.Field(i)) {
			continue
		}
		below := path
		if !f.Anonymous {
			below = path.Child(key)
		}
		collect(v.Field(i), below, list)
	}
}

// Print gives the effective configuration as YAML that Load would take, with secrets masked.
func (l *Loader) Print() ([]byte, error) {
	root := map[string]any{}
	for _, s := range l.settings {
		at := root
		keys := strings.Split(s.path, ".")
		for _, k := range keys[:len(keys)-1] {
			if _, ok := at[k]; !ok {
				at[k] = map[string]any{}
			}
			at = at[k].(map[string]any)
		}
		at[keys[len(keys)-1]] = printable(s)
	}
	out, err := yaml.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return out, nil
}

func printable(s setting) any {
	switch {
	case s.secret && !s.value.IsZero():
		return Masked
	case s.value.Type() == durationType:
		return text(s.value)
	}
	return s.value.Interface()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// flagValue keeps a flag's words until Load, which applies them last.
type flagValue struct {
	setting setting
	shown   string
	set     bool
}

// String gives the default or what was given.
func (f *flagValue) String() string { return f.shown }

// Set checks the words at once, so that a bad flag is refused with the flag's usage.
func (f *flagValue) Set(s string) error {
	scratch := reflect.New(f.setting.value.Type()).Elem()
	if err := setText(scratch, s); err != nil {
		return redact(f.setting, err)
	}
	f.shown, f.set = s, true
	return nil
}

// Type is the word for the value in the usage.
func (f *flagValue) Type() string {
	switch {
	case f.setting.value.Type() == durationType:
		return "duration"
	case f.setting.value.Kind() == reflect.Bool:
		return "bool"
	case f.setting.value.Kind() == reflect.Slice:
		return "strings"
	case f.setting.value.CanInt(), f.setting.value.CanUint(), f.setting.value.CanFloat():
		return "number"
	}
	return "string"
}
