package spec

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Assemble fetches what the container refers to, has its files made and builds
// the request. Every error but a context's is a CreateContainerConfigError (L3.89).
func Assemble(ctx context.Context, in ContainerInput, f Fetcher, d Disk) (*cri.ContainerConfig, error) {
	in.Files.Volumes = d.Volumes(in.Pod.UID)
	var err error
	if in.Sources, err = fetch(ctx, &in, f, d); err != nil {
		return nil, err
	}
	env, err := buildEnvironment(&in)
	if err != nil {
		return nil, err
	}
	if err := makeFiles(ctx, &in, env, d); err != nil {
		return nil, err
	}
	return containerConfig(&in, env)
}

// fetch gets the objects and files that env and envFrom name. Objects that do not exist are omitted: buildEnvironment
// decides whether that is an error.
func fetch(ctx context.Context, in *ContainerInput, f Fetcher, d Disk) (Sources, error) {
	src := Sources{
		ConfigMaps: make(map[string]*corev1.ConfigMap),
		Secrets:    make(map[string]*corev1.Secret),
		EnvFiles:   make(map[EnvFile][]byte),
	}
	ns := in.Pod.Namespace
	configMap := func(name string) error {
		if _, ok := src.ConfigMaps[name]; ok {
			return nil
		}
		cm, err := f.ConfigMap(ctx, ns, name)
		if err == nil {
			src.ConfigMaps[name] = cm
		}
		return absent(err)
	}
	secret := func(name string) error {
		if _, ok := src.Secrets[name]; ok {
			return nil
		}
		s, err := f.Secret(ctx, ns, name)
		if err == nil {
			src.Secrets[name] = s
		}
		return absent(err)
	}
	var errs []error
	for i := range in.Container.EnvFrom {
		from := &in.Container.EnvFrom[i]
		if from.ConfigMapRef != nil {
			errs = append(errs, configMap(from.ConfigMapRef.Name))
		}
		if from.SecretRef != nil {
			errs = append(errs, secret(from.SecretRef.Name))
		}
	}
	for i := range in.Container.Env {
		from := in.Container.Env[i].ValueFrom
		switch {
		case from == nil:
		case from.ConfigMapKeyRef != nil:
			errs = append(errs, configMap(from.ConfigMapKeyRef.Name))
		case from.SecretKeyRef != nil:
			errs = append(errs, secret(from.SecretKeyRef.Name))
		case from.FileKeyRef != nil:
			key := EnvFile{from.FileKeyRef.VolumeName, from.FileKeyRef.Path}
			if _, ok := in.Files.Volumes[key.Volume]; !ok {
				continue // reported with the variable
			}
			if _, ok := src.EnvFiles[key]; ok {
				continue
			}
			text, err := d.ReadFile(in.Pod.UID, key.Volume, key.Path)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: %w", errEnvFile, err))
				continue
			}
			src.EnvFiles[key] = text
		}
	}
	for _, err := range errs {
		if err != nil {
			return Sources{}, err // one is enough for the pod's status
		}
	}
	var err error
	if src.Services, err = f.Services(ctx, ns); err != nil {
		return Sources{}, err
	}
	return src, nil
}

// absent passes every error but "it does not exist".
func absent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// makeFiles has the hosts file, the termination message file and the sub-paths made.
func makeFiles(ctx context.Context, in *ContainerInput, env *environment, d Disk) error {
	var err error
	pod, c := in.Pod, in.Container
	if managesHosts(pod, c, in.PodIPs) {
		hosts, err := HostsFile(pod, in.Node, in.PodIPs)
		if err != nil {
			return err
		}
		if in.Files.Hosts, err = d.HostsFile(pod.UID, hosts); err != nil {
			return err
		}
	}
	if c.TerminationMessagePath != "" {
		if in.Files.TerminationLog, err = d.TerminationLog(pod.UID, c.Name); err != nil {
			return err
		}
	}
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		v, ok := in.Files.Volumes[vm.Name]
		if !ok || v.Image != nil {
			continue // the first is reported with the mounts, the second is done by the runtime
		}
		sub, err := subPath(vm, env)
		if err != nil {
			return err
		}
		if sub == "" {
			continue
		}
		resolved, err := d.SubPath(ctx, SubPath{
			UID: pod.UID, Container: c.Name, Index: i, Volume: vm.Name, Path: sub, ReadOnly: vm.ReadOnly || v.ReadOnly,
		})
		if err != nil {
			return err
		}
		if in.Files.SubPaths == nil {
			in.Files.SubPaths = make(map[int]string)
		}
		in.Files.SubPaths[i] = resolved
	}
	return nil
}
