package validation

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const badMode = "must be a number between 0 and 0777 (octal), both inclusive"

func (k *podChecker) checkVolumes(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	k.volumes = make(map[string]*corev1.VolumeSource, len(k.spec.Volumes))
	for i := range k.spec.Volumes {
		v, at, before := &k.spec.Volumes[i], at.Index(i), len(errs)
		if v.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if msgs := validation.IsDNS1123Label(v.Name); len(msgs) > 0 {
			errs = append(errs, messages(at.Child("name"), v.Name, msgs)...)
		} else if _, ok := k.volumes[v.Name]; ok {
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		}
		more := k.volumeSource(&v.VolumeSource, at)
		if v.Ephemeral != nil && k.pod && k.name != "" && v.Name != "" {
			claim := k.name + "-" + v.Name
			for _, m := range apivalidation.NameIsDNSSubdomain(claim, false) {
				more = append(more, field.Invalid(at.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %s", claim, m)))
			}
		}
		// One that is wrong can't be mounted either.
		if len(errs)+len(more) == before {
			k.volumes[v.Name] = &v.VolumeSource
		}
		errs = append(errs, more...)
	}
	return errs
}

// sources counts the volume types of one volume; only the first is checked further.
type sources struct {
	at   *field.Path
	n    int
	errs field.ErrorList
}

func (s *sources) take(name string, check func(at *field.Path) field.ErrorList) {
	s.takeAs(name, name, check)
}

// takeAs is take for a type that upstream calls otherwise when it is one too many.
func (s *sources) takeAs(name, surplus string, check func(at *field.Path) field.ErrorList) {
	if s.n++; s.n > 1 {
		s.errs = append(s.errs, field.Forbidden(s.at.Child(surplus), "may not specify more than 1 volume type"))
		return
	}
	if check != nil {
		s.errs = append(s.errs, check(s.at.Child(name))...)
	}
}

func (k *podChecker) volumeSource(v *corev1.VolumeSource, at *field.Path) field.ErrorList {
	s := sources{at: at}
	if v.EmptyDir != nil {
		s.take("emptyDir", func(at *field.Path) field.ErrorList { return emptyDir(v.EmptyDir, at) })
	}
	if v.HostPath != nil {
		s.take("hostPath", func(at *field.Path) field.ErrorList { return hostPath(v.HostPath, at) })
	}
	if v.Secret != nil {
		s.take("secret", func(at *field.Path) field.ErrorList {
			return keyedFiles("secretName", v.Secret.SecretName, v.Secret.DefaultMode, v.Secret.Items, at)
		})
	}
	if v.ConfigMap != nil {
		s.take("configMap", func(at *field.Path) field.ErrorList {
			return keyedFiles("name", v.ConfigMap.Name, v.ConfigMap.DefaultMode, v.ConfigMap.Items, at)
		})
	}
	if v.DownwardAPI != nil {
		s.takeAs("downwardAPI", "downwarAPI", func(at *field.Path) field.ErrorList {
			return append(fileMode(v.DownwardAPI.DefaultMode, at.Child("defaultMode")), downwardFiles(v.DownwardAPI.Items, at)...)
		})
	}
	if v.Projected != nil {
		s.take("projected", func(at *field.Path) field.ErrorList { return k.projected(v.Projected, at) })
	}
	if v.PersistentVolumeClaim != nil {
		s.take("persistentVolumeClaim", func(at *field.Path) field.ErrorList {
			return required(at.Child("claimName"), v.PersistentVolumeClaim.ClaimName)
		})
	}
	if v.Ephemeral != nil {
		s.take("ephemeral", func(at *field.Path) field.ErrorList { return ephemeralVolume(v.Ephemeral, at) })
	}
	if v.NFS != nil {
		s.take("nfs", func(at *field.Path) field.ErrorList { return nfs(v.NFS, at) })
	}
	if v.CSI != nil {
		s.take("csi", func(at *field.Path) field.ErrorList { return driverName(v.CSI.Driver, at.Child("driver")) })
	}
	if v.Image != nil {
		s.take("image", func(at *field.Path) field.ErrorList { return imageVolume(v.Image, k.kept, at) })
	}
	remoteSources(v, &s)
	if s.n == 0 {
		s.errs = append(s.errs, field.Required(at, "must specify a volume type"))
	}
	return s.errs
}

// remoteSources are the in-tree types of storage services; a node without a driver for one says so itself.
func remoteSources(v *corev1.VolumeSource, s *sources) {
	if r := v.GitRepo; r != nil {
		s.take("gitRepo", func(at *field.Path) field.ErrorList {
			errs := required(at.Child("repository"), r.Repository)
			return append(errs, descendingPath(r.Directory, at.Child("directory"))...)
		})
	}
	if r := v.ISCSI; r != nil {
		s.take("iscsi", func(at *field.Path) field.ErrorList {
			return iscsi(r.TargetPortal, r.IQN, r.Lun, r.InitiatorName, at)
		})
	}
	if r := v.RBD; r != nil {
		s.take("rbd", func(at *field.Path) field.ErrorList {
			var errs field.ErrorList
			if len(r.CephMonitors) == 0 {
				errs = append(errs, field.Required(at.Child("monitors"), ""))
			}
			return append(errs, required(at.Child("image"), r.RBDImage)...)
		})
	}
	if r := v.CephFS; r != nil {
		s.takeAs("cephfs", "cephFS", func(at *field.Path) field.ErrorList {
			if len(r.Monitors) == 0 {
				return field.ErrorList{field.Required(at.Child("monitors"), "")}
			}
			return nil
		})
	}
	if r := v.Glusterfs; r != nil {
		s.take("glusterfs", func(at *field.Path) field.ErrorList {
			return append(required(at.Child("endpoints"), r.EndpointsName), required(at.Child("path"), r.Path)...)
		})
	}
	if r := v.GCEPersistentDisk; r != nil {
		s.takeAs("persistentDisk", "gcePersistentDisk", func(at *field.Path) field.ErrorList { return required(at.Child("pdName"), r.PDName) })
	}
	if r := v.AWSElasticBlockStore; r != nil {
		s.take("awsElasticBlockStore", func(at *field.Path) field.ErrorList { return required(at.Child("volumeID"), r.VolumeID) })
	}
	if r := v.Cinder; r != nil {
		s.take("cinder", func(at *field.Path) field.ErrorList { return required(at.Child("volumeID"), r.VolumeID) })
	}
	if r := v.AzureFile; r != nil {
		s.take("azureFile", func(at *field.Path) field.ErrorList {
			return append(required(at.Child("secretName"), r.SecretName), required(at.Child("shareName"), r.ShareName)...)
		})
	}
	if r := v.AzureDisk; r != nil {
		s.take("azureDisk", func(at *field.Path) field.ErrorList {
			return azureDisk(r, at)
		})
	}
	if r := v.VsphereVolume; r != nil {
		s.take("vsphereVolume", func(at *field.Path) field.ErrorList { return required(at.Child("volumePath"), r.VolumePath) })
	}
	if r := v.PortworxVolume; r != nil {
		s.take("portworxVolume", func(at *field.Path) field.ErrorList { return required(at.Child("volumeID"), r.VolumeID) })
	}
	if r := v.FlexVolume; r != nil {
		s.take("flexVolume", func(at *field.Path) field.ErrorList { return required(at.Child("driver"), r.Driver) })
	}
	inlineSource(v, s)
}

func required(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return nil
}

func emptyDir(v *corev1.EmptyDirVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	return errs
}

func hostPath(v *corev1.HostPathVolumeSource, at *field.Path) field.ErrorList {
	if v.Path == "" {
		return field.ErrorList{field.Required(at.Child("path"), "")}
	}
	errs := noBacksteps(v.Path, at.Child("path"))
	known := []corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
		corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev}
	if v.Type != nil && !slices.Contains(known, *v.Type) {
		slices.Sort(known)
		errs = append(errs, field.NotSupported(at.Child("type"), *v.Type, known))
	}
	return errs
}

func fileMode(mode *int32, at *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(at, *mode, badMode)}
	}
	return nil
}

func keyedFiles(nameField, name string, defaultMode *int32, items []corev1.KeyToPath, at *field.Path) field.ErrorList {
	errs := required(at.Child(nameField), name)
	errs = append(errs, fileMode(defaultMode, at.Child("defaultMode"))...)
	return append(errs, keysToPaths(items, at)...)
}

func keysToPaths(items []corev1.KeyToPath, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item, at := &items[i], at.Child("items").Index(i)
		errs = append(errs, required(at.Child("key"), item.Key)...)
		errs = append(errs, required(at.Child("path"), item.Path)...)
		errs = append(errs, volumeFile(item.Path, at.Child("path"))...)
		errs = append(errs, fileMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

// volumeFile checks the name of a file the agent makes in a volume; names that begin with ".." are the agent's own.
func volumeFile(p string, at *field.Path) field.ErrorList {
	errs := descendingPath(p, at)
	if strings.HasPrefix(p, "..") && !strings.HasPrefix(p, "../") {
		errs = append(errs, field.Invalid(at, p, "must not start with '..'"))
	}
	return errs
}

// downwardFiles checks files; it is the volume that upstream blames, not one of them.
func downwardFiles(items []corev1.DownwardAPIVolumeFile, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item := &items[i]
		errs = append(errs, required(at.Child("path"), item.Path)...)
		errs = append(errs, volumeFile(item.Path, at.Child("path"))...)
		switch {
		case item.FieldRef != nil && item.ResourceFieldRef != nil:
			errs = append(errs, field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		case item.FieldRef != nil:
			errs = append(errs, fieldRef(item.FieldRef, fileFields, at.Child("fieldRef"))...)
		case item.ResourceFieldRef != nil:
			errs = append(errs, resourceFieldRef(item.ResourceFieldRef, true, at.Child("resourceFieldRef"))...)
		default:
			errs = append(errs, field.Required(at, "one of fieldRef and resourceFieldRef is required"))
		}
		errs = append(errs, fileMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

func (k *podChecker) projected(v *corev1.ProjectedVolumeSource, at *field.Path) field.ErrorList {
	errs := fileMode(v.DefaultMode, at.Child("defaultMode"))
	paths := sets.New[string]()
	// Two sources must not write the same file.
	claim := func(shown, p string) {
		if p == "" {
			return
		}
		if paths.Has(p) {
			errs = append(errs, field.Invalid(at, shown, "conflicting duplicate paths"))
		}
		paths.Insert(p)
	}
	for i := range v.Sources {
		whole := at
		s, at := &v.Sources[i], at.Child("sources").Index(i)
		one := sources{at: at}
		if s.Secret != nil {
			one.take("secret", func(at *field.Path) field.ErrorList {
				errs := required(at.Child("name"), s.Secret.Name)
				for j := range s.Secret.Items {
					claim(s.Secret.Name, s.Secret.Items[j].Path)
				}
				return append(errs, keysToPaths(s.Secret.Items, at)...)
			})
		}
		if s.ConfigMap != nil {
			one.take("configMap", func(at *field.Path) field.ErrorList {
				errs := required(at.Child("name"), s.ConfigMap.Name)
				for j := range s.ConfigMap.Items {
					claim(s.ConfigMap.Name, s.ConfigMap.Items[j].Path)
				}
				return append(errs, keysToPaths(s.ConfigMap.Items, at)...)
			})
		}
		if s.DownwardAPI != nil {
			one.take("downwardAPI", func(at *field.Path) field.ErrorList {
				for j := range s.DownwardAPI.Items {
					claim(s.DownwardAPI.Items[j].Path, s.DownwardAPI.Items[j].Path)
				}
				return downwardFiles(s.DownwardAPI.Items, at)
			})
		}
		if s.ServiceAccountToken != nil {
			one.take("serviceAccountToken", func(at *field.Path) field.ErrorList {
				return tokenProjection(s.ServiceAccountToken, k.kept.tokenPaths, whole, at)
			})
		}
		if s.ClusterTrustBundle != nil {
			one.take("clusterTrustBundle", func(at *field.Path) field.ErrorList {
				claim(s.ClusterTrustBundle.Path, s.ClusterTrustBundle.Path)
				return projectedBundle(s.ClusterTrustBundle, at)
			})
		}
		if s.PodCertificate != nil {
			one.take("podCertificate", func(at *field.Path) field.ErrorList {
				claim(s.PodCertificate.CredentialBundlePath, s.PodCertificate.CredentialBundlePath)
				claim(s.PodCertificate.KeyPath, s.PodCertificate.KeyPath)
				claim(s.PodCertificate.CertificateChainPath, s.PodCertificate.CertificateChainPath)
				return projectedCertificate(s.PodCertificate, at)
			})
		}
		errs = append(errs, one.errs...) // upstream lets a source be empty
	}
	return errs
}

// tokenProjection checks a token's file; for the path it is the volume, whole, that upstream blames.
func tokenProjection(t *corev1.ServiceAccountTokenProjection, keptPath bool, whole, at *field.Path) field.ErrorList {
	const shortest, longest = 10 * 60, 1 << 32
	var errs field.ErrorList
	if s := t.ExpirationSeconds; s != nil {
		if *s < shortest {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration less than 10 minutes"))
		}
		if *s > longest {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	if t.Path == "" {
		return append(errs, field.Required(whole.Child("path"), ""))
	}
	if keptPath {
		return errs
	}
	return append(errs, volumeFile(t.Path, whole.Child("path"))...)
}

func ephemeralVolume(v *corev1.EphemeralVolumeSource, at *field.Path) field.ErrorList {
	t := v.VolumeClaimTemplate
	if t == nil {
		return field.ErrorList{field.Required(at.Child("volumeClaimTemplate"), "")}
	}
	at = at.Child("volumeClaimTemplate")
	errs := templateMeta(&t.ObjectMeta, at.Child("metadata"))
	return append(errs, claimSpec(&t.Spec, claimFaults{}, at.Child("spec"))...)
}

func nfs(v *corev1.NFSVolumeSource, at *field.Path) field.ErrorList {
	errs := required(at.Child("server"), v.Server)
	errs = append(errs, required(at.Child("path"), v.Path)...)
	if !path.IsAbs(v.Path) {
		errs = append(errs, field.Invalid(at.Child("path"), v.Path, "must be an absolute path"))
	}
	return errs
}

func imageVolume(v *corev1.ImageVolumeSource, kept podFaults, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !kept.noImage {
		errs = required(at.Child("reference"), v.Reference)
	}
	return append(errs, oneOf(string(v.PullPolicy), at.Child("pullPolicy"), string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever))...)
}
