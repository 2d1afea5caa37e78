package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type envVar struct{ name, value string }

// environment is a set of variables in the order in which they were first set.
type environment struct {
	list  []envVar
	index map[string]int
	room  room
	files map[EnvFile]envFile // those that were parsed
}

// envFile is what a file of variables has.
type envFile struct {
	values map[string]string
	err    error
}

func (e *environment) set(name, value string) error {
	if err := e.room.take(len(name) + len(value)); err != nil {
		return err
	}
	if i, ok := e.index[name]; ok {
		e.list[i].value = value
		return nil
	}
	if e.index == nil {
		e.index = make(map[string]int)
	}
	e.index[name] = len(e.list)
	e.list = append(e.list, envVar{name, value})
	return nil
}

func (e *environment) get(name string) (string, bool) {
	i, ok := e.index[name]
	if !ok {
		return "", false
	}
	return e.list[i].value, true
}

func (e *environment) keyValues() []*cri.KeyValue {
	kvs := make([]*cri.KeyValue, len(e.list))
	for i, v := range e.list {
		kvs[i] = &cri.KeyValue{Key: v.name, Value: []byte(v.value)}
	}
	return kvs
}

// buildEnvironment assembles the variables of a container: services, then
// envFrom, then env; later wins (L3.130).
func buildEnvironment(in *ContainerInput) (*environment, error) {
	var env environment
	if in.Devices != nil {
		for _, v := range in.Devices.Env {
			if err := env.set(v.Name, v.Value); err != nil {
				return nil, err
			}
		}
	}
	for _, v := range serviceEnv(in.Pod, in.Sources.Services) {
		if err := env.set(v.name, v.value); err != nil {
			return nil, err
		}
	}
	for i := range in.Container.EnvFrom {
		if err := env.addFrom(in, &in.Container.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range in.Container.Env {
		v := &in.Container.Env[i]
		value, ok, err := env.value(in, v)
		if err == nil && ok {
			err = env.set(v.Name, value)
		}
		if err != nil {
			return nil, err
		}
	}
	return &env, nil
}

// value returns the value of one variable; ok is false for a missing optional one.
func (e *environment) value(in *ContainerInput, v *corev1.EnvVar) (value string, ok bool, err error) {
	if v.ValueFrom != nil {
		return e.valueFrom(in, v.ValueFrom)
	}
	value, _, err = new(room).expand(v.Value, e.get)
	return value, true, err
}

// addFrom adds all keys of a config map or secret (L3.130).
func (e *environment) addFrom(in *ContainerInput, from *corev1.EnvFromSource) error {
	if ref := from.ConfigMapRef; ref != nil {
		cm, err := configMap(in, ref.Name, ref.Optional)
		if err != nil || cm == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			if err := e.set(from.Prefix+key, cm.Data[key]); err != nil {
				return err
			}
		}
	}
	if ref := from.SecretRef; ref != nil {
		s, err := secret(in, ref.Name, ref.Optional)
		if err != nil || s == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(s.Data)) {
			if err := e.set(from.Prefix+key, string(s.Data[key])); err != nil {
				return err
			}
		}
	}
	return nil
}

// valueFrom returns the value of one variable; ok is false for a missing optional one
// (L3.133–136).
func (e *environment) valueFrom(in *ContainerInput, from *corev1.EnvVarSource) (value string, ok bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = Field(in.Pod, in.Node, in.PodIPs, from.FieldRef.FieldPath)
		return value, err == nil, err

	case from.ResourceFieldRef != nil:
		value, err = ResourceField(in.Pod, in.Container, in.Node, from.ResourceFieldRef)
		return value, err == nil, err

	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		cm, err := configMap(in, ref.Name, ref.Optional)
		if err != nil || cm == nil {
			return "", false, err
		}
		value, ok = cm.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, &missingKeyError{ref.Key, "ConfigMap", in.Pod.Namespace, ref.Name}
		}
		return value, ok, nil

	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := secret(in, ref.Name, ref.Optional)
		if err != nil || s == nil {
			return "", false, err
		}
		data, ok := s.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, &missingKeyError{ref.Key, "Secret", in.Pod.Namespace, ref.Name}
		}
		return string(data), ok, nil

	case from.FileKeyRef != nil:
		return e.fileKey(in, from.FileKeyRef)
	}
	return "", false, nil
}

func (e *environment) fileKey(in *ContainerInput, ref *corev1.FileKeySelector) (value string, ok bool, err error) {
	if _, ok := in.Files.Volumes[ref.VolumeName]; !ok {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	name := EnvFile{ref.VolumeName, ref.Path}
	file, parsed := e.files[name]
	if !parsed { // once: a container may have very many variables of one file
		text, ok := in.Sources.EnvFiles[name]
		if !ok {
			return "", false, errEnvFile
		}
		file.values, file.err = parseEnvFile(string(text))
		if e.files == nil {
			e.files = map[EnvFile]envFile{}
		}
		e.files[name] = file
	}
	value = file.values[ref.Key]
	switch {
	case file.err != nil:
		return "", false, file.err
	case value != "":
		return value, true, nil
	case isTrue(ref.Optional):
		return "", false, nil
	}
	return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
}

// configMap returns nil for a missing optional one.
func configMap(in *ContainerInput, name string, optional *bool) (*corev1.ConfigMap, error) {
	if cm := in.Sources.ConfigMaps[name]; cm != nil {
		return cm, nil
	}
	if isTrue(optional) {
		return nil, nil
	}
	return nil, &NotFoundError{Kind: "configmap", Name: name}
}

func secret(in *ContainerInput, name string, optional *bool) (*corev1.Secret, error) {
	if s := in.Sources.Secrets[name]; s != nil {
		return s, nil
	}
	if isTrue(optional) {
		return nil, nil
	}
	return nil, &NotFoundError{Kind: "secret", Name: name}
}

// NotFoundError means that a pod refers to an object that does not exist (L3.134, L10.29).
type NotFoundError struct{ Kind, Name string }

func (e *NotFoundError) Error() string { return fmt.Sprintf("%s %q not found", e.Kind, e.Name) }

// missingKeyError means that an object does not have the key that a variable names (L3.134).
type missingKeyError struct{ key, kind, namespace, name string }

func (e *missingKeyError) Error() string {
	return fmt.Sprintf("couldn't find key %s in %s %s/%s", e.key, e.kind, e.namespace, e.name)
}

// Missing is the config map or secret that the variables of a container lack, or whose key they lack.
type Missing struct {
	Secret bool
	Name   string
}

// MissingFrom returns for want of which object Assemble failed; false: it failed for something else.
func MissingFrom(err error) (Missing, bool) {
	if e, ok := errors.AsType[*NotFoundError](err); ok {
		return Missing{e.Kind == "secret", e.Name}, true
	}
	if e, ok := errors.AsType[*missingKeyError](err); ok {
		return Missing{e.kind == "Secret", e.name}, true
	}
	return Missing{}, false
}

func isTrue(b *bool) bool { return b != nil && *b }
