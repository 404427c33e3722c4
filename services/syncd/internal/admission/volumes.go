package admission

import (
	"path"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// supportedVolumes are the sources that volumed sets up, and images, which the runtime mounts.
var supportedVolumes = []string{"emptyDir", "hostPath", "configMap", "secret", "image"}

// validateVolumes also gives the volumes by name, for the mounts that refer to them.
func validateVolumes(volumes []v1.Volume, p *field.Path) (map[string]*v1.Volume, field.ErrorList) {
	var list field.ErrorList
	names := make(map[string]*v1.Volume, len(volumes))
	for i := range volumes {
		v, at := &volumes[i], p.Index(i)
		list = append(list, invalidIf(at.Child("name"), v.Name, validation.IsDNS1123Label(v.Name))...)
		if names[v.Name] != nil {
			list = append(list, field.Duplicate(at.Child("name"), v.Name))
		}
		names[v.Name] = v
		list = append(list, validateSource(v, at)...)
	}
	return names, list
}

func validateSource(v *v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	sources := sourcesOf(&v.VolumeSource)
	if len(sources) > 1 {
		list = append(list, field.Forbidden(p.Child(sources[1]), "may not specify more than 1 volume type"))
	}
	for _, s := range sources {
		if !slices.Contains(supportedVolumes, s) {
			list = append(list, notHere(p.Child(s), "volumes of type "+s, supportedVolumes...))
		}
	}
	if d := v.EmptyDir; d != nil {
		at := p.Child("emptyDir")
		if d.Medium != v1.StorageMediumDefault && d.Medium != v1.StorageMediumMemory {
			list = append(list, field.NotSupported(at.Child("medium"), d.Medium, []v1.StorageMedium{"", v1.StorageMediumMemory}))
		}
		if d.SizeLimit != nil && d.SizeLimit.Sign() < 0 {
			list = append(list, field.Invalid(at.Child("sizeLimit"), "", "must be greater than or equal to 0"))
		}
	}
	if h := v.HostPath; h != nil {
		list = append(list, validateHostPath(h, p.Child("hostPath"))...)
	}
	if c := v.ConfigMap; c != nil {
		at := p.Child("configMap")
		list = append(list, validateRef(at.Child("name"), c.Name)...)
		list = append(list, validateFiles(c.DefaultMode, c.Items, at)...)
	}
	if s := v.Secret; s != nil {
		at := p.Child("secret")
		list = append(list, validateRef(at.Child("secretName"), s.SecretName)...)
		list = append(list, validateFiles(s.DefaultMode, s.Items, at)...)
	}
	if i := v.Image; i != nil {
		list = append(list, validateImageVolume(i, p.Child("image"))...)
	}
	return list
}

func validateImageVolume(i *v1.ImageVolumeSource, p *field.Path) field.ErrorList {
	var list field.ErrorList
	switch {
	case i.Reference == "":
		list = append(list, field.Required(p.Child("reference"), "must name an image"))
	case strings.TrimSpace(i.Reference) != i.Reference:
		list = append(list, field.Invalid(p.Child("reference"), i.Reference, "must not have leading or trailing whitespace"))
	}
	return append(list, enum(p.Child("pullPolicy"), i.PullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
}

// sourcesOf gives the JSON names of the volume sources that are set.
func sourcesOf(s *v1.VolumeSource) []string {
	var names []string
	v := reflect.ValueOf(s).Elem()
	for f, x := range v.Fields() {
		if !x.IsNil() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

func validateHostPath(h *v1.HostPathVolumeSource, p *field.Path) field.ErrorList {
	var list field.ErrorList
	switch {
	case h.Path == "":
		list = append(list, field.Required(p.Child("path"), "must be a path on the node"))
	case hasDotDot(h.Path):
		list = append(list, field.Invalid(p.Child("path"), h.Path, "must not contain '..'"))
	case !path.IsAbs(h.Path):
		list = append(list, field.Invalid(p.Child("path"), h.Path, "must be an absolute path"))
	}
	if h.Type != nil {
		list = append(list, enum(p.Child("type"), *h.Type, v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory,
			v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)...)
	}
	return list
}

func validateRef(p *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "must name an object")}
	}
	return invalidIf(p, name, validation.IsDNS1123Subdomain(name))
}

func validateFiles(mode *int32, items []v1.KeyToPath, p *field.Path) field.ErrorList {
	list := validateMode(mode, p.Child("defaultMode"))
	for i, it := range items {
		at := p.Child("items").Index(i)
		if it.Key == "" {
			list = append(list, field.Required(at.Child("key"), "must be a key of the object"))
		}
		list = append(list, validateLocal(it.Path, at.Child("path"))...)
		list = append(list, validateMode(it.Mode, at.Child("mode"))...)
	}
	return list
}

// validateLocal checks the path of a file within a volume.
func validateLocal(file string, p *field.Path) field.ErrorList {
	switch {
	case file == "":
		return field.ErrorList{field.Required(p, "must be a relative path")}
	case path.IsAbs(file):
		return field.ErrorList{field.Invalid(p, file, "must be a relative path")}
	case hasDotDot(file):
		return field.ErrorList{field.Invalid(p, file, "must not contain '..'")}
	case strings.HasPrefix(file, ".."):
		return field.ErrorList{field.Invalid(p, file, "must not start with '..'")}
	}
	return nil
}

func validateMode(mode *int32, p *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(p, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

func hasDotDot(p string) bool {
	for _, part := range strings.Split(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func validateMounts(c *v1.Container, volumes map[string]*v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	paths := make(map[string]bool, len(c.VolumeMounts))
	privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], p.Child("volumeMounts").Index(i)
		switch {
		case m.Name == "":
			list = append(list, field.Required(at.Child("name"), "must name a volume of the pod"))
		case volumes[m.Name] == nil:
			list = append(list, field.NotFound(at.Child("name"), m.Name))
		}
		switch {
		case m.MountPath == "":
			list = append(list, field.Required(at.Child("mountPath"), "must be a path in the container"))
		case strings.Contains(m.MountPath, ":"):
			list = append(list, field.Invalid(at.Child("mountPath"), m.MountPath, "must not contain ':'"))
		case paths[m.MountPath]:
			list = append(list, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths[m.MountPath] = true
		list = append(list, validateSubPath(m, volumes[m.Name], at)...)
		list = append(list, validateMountOptions(m, privileged, at)...)
	}
	for i := range c.VolumeDevices {
		list = append(list, notHere(p.Child("volumeDevices").Index(i), "block volumes"))
	}
	return list
}

// validateSubPath lets parts be mounted of images only, where the runtime finds them.
func validateSubPath(m *v1.VolumeMount, of *v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for _, part := range []struct{ name, path string }{{"subPath", m.SubPath}, {"subPathExpr", m.SubPathExpr}} {
		at := p.Child(part.name)
		switch {
		case part.path == "":
		case of == nil || of.Image == nil:
			list = append(list, notHere(at, "a part of a volume that is no image"))
		case path.IsAbs(part.path):
			list = append(list, field.Invalid(at, part.path, "must be a relative path"))
		case hasDotDot(part.path):
			list = append(list, field.Invalid(at, part.path, "must not contain '..'"))
		}
	}
	if m.SubPath != "" && m.SubPathExpr != "" {
		list = append(list, field.Invalid(p.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
	}
	return list
}

func validateMountOptions(m *v1.VolumeMount, privileged bool, p *field.Path) field.ErrorList {
	var list field.ErrorList
	if mp := m.MountPropagation; mp != nil {
		list = append(list, enum(p.Child("mountPropagation"), *mp, v1.MountPropagationNone, v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional)...)
		if *mp == v1.MountPropagationBidirectional && !privileged {
			list = append(list, field.Forbidden(p.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	if r := m.RecursiveReadOnly; r != nil && *r != v1.RecursiveReadOnlyDisabled {
		at := p.Child("recursiveReadOnly")
		list = append(list, enum(at, *r, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled)...)
		if !m.ReadOnly {
			list = append(list, field.Forbidden(at, "may only be specified when readOnly is true"))
		}
		if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
			list = append(list, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
		}
	}
	return list
}
