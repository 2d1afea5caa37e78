package pods

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
	"carob/internal/kinds/volumes"
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
			errs = append(errs, rules.Messages(at.Child("name"), v.Name, msgs)...)
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
		// An invalid volume cannot be mounted.
		if len(errs)+len(more) == before {
			k.volumes[v.Name] = &v.VolumeSource
		}
		errs = append(errs, more...)
	}
	return errs
}

func (k *podChecker) volumeSource(v *corev1.VolumeSource, at *field.Path) field.ErrorList {
	s := volumes.Sources{At: at}
	if v.EmptyDir != nil {
		s.Take("emptyDir", func(at *field.Path) field.ErrorList { return validateEmptyDir(v.EmptyDir, at) })
	}
	if v.HostPath != nil {
		s.Take("hostPath", func(at *field.Path) field.ErrorList { return volumes.ValidateHostPath(v.HostPath, at) })
	}
	if v.Secret != nil {
		s.Take("secret", func(at *field.Path) field.ErrorList {
			return validateKeyedFiles("secretName", v.Secret.SecretName, v.Secret.DefaultMode, v.Secret.Items, at)
		})
	}
	if v.ConfigMap != nil {
		s.Take("configMap", func(at *field.Path) field.ErrorList {
			return validateKeyedFiles("name", v.ConfigMap.Name, v.ConfigMap.DefaultMode, v.ConfigMap.Items, at)
		})
	}
	if v.DownwardAPI != nil {
		s.TakeAs("downwardAPI", "downwarAPI", func(at *field.Path) field.ErrorList {
			return append(validateFileMode(v.DownwardAPI.DefaultMode, at.Child("defaultMode")),
				validateDownwardFiles(v.DownwardAPI.Items, at)...)
		})
	}
	if v.Projected != nil {
		s.Take("projected", func(at *field.Path) field.ErrorList { return k.projected(v.Projected, at) })
	}
	if v.PersistentVolumeClaim != nil {
		s.Take("persistentVolumeClaim", func(at *field.Path) field.ErrorList {
			return rules.Required(at.Child("claimName"), v.PersistentVolumeClaim.ClaimName)
		})
	}
	if v.Ephemeral != nil {
		s.Take("ephemeral", func(at *field.Path) field.ErrorList { return validateEphemeralVolume(v.Ephemeral, at) })
	}
	if v.NFS != nil {
		s.Take("nfs", func(at *field.Path) field.ErrorList { return volumes.ValidateNFS(v.NFS, at) })
	}
	if v.CSI != nil {
		s.Take("csi", func(at *field.Path) field.ErrorList {
			return rules.DriverName(v.CSI.Driver, at.Child("driver"))
		})
	}
	if v.Image != nil {
		s.Take("image", func(at *field.Path) field.ErrorList { return validateImageVolume(v.Image, k.kept, at) })
	}
	volumes.RemoteSources(v, &s)
	if s.N == 0 {
		s.Errs = append(s.Errs, field.Required(at, "must specify a volume type"))
	}
	return s.Errs
}

func validateEmptyDir(v *corev1.EmptyDirVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	return errs
}

func validateFileMode(mode *int32, at *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(at, *mode, badMode)}
	}
	return nil
}

func validateKeyedFiles(nameField, name string, defaultMode *int32, items []corev1.KeyToPath,
	at *field.Path) field.ErrorList {
	errs := rules.Required(at.Child(nameField), name)
	errs = append(errs, validateFileMode(defaultMode, at.Child("defaultMode"))...)
	return append(errs, validateKeysToPaths(items, at)...)
}

func validateKeysToPaths(items []corev1.KeyToPath, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item, at := &items[i], at.Child("items").Index(i)
		errs = append(errs, rules.Required(at.Child("key"), item.Key)...)
		errs = append(errs, rules.Required(at.Child("path"), item.Path)...)
		errs = append(errs, validateVolumeFile(item.Path, at.Child("path"))...)
		errs = append(errs, validateFileMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

// validateVolumeFile validates the name of a file that the agent creates in a volume; names that
// begin with ".." are reserved for the agent.
func validateVolumeFile(p string, at *field.Path) field.ErrorList {
	errs := rules.DescendingPath(p, at)
	if strings.HasPrefix(p, "..") && !strings.HasPrefix(p, "../") {
		errs = append(errs, field.Invalid(at, p, "must not start with '..'"))
	}
	return errs
}

// validateDownwardFiles validates files; upstream's errors are about the volume, not the file.
func validateDownwardFiles(items []corev1.DownwardAPIVolumeFile, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item := &items[i]
		errs = append(errs, rules.Required(at.Child("path"), item.Path)...)
		errs = append(errs, validateVolumeFile(item.Path, at.Child("path"))...)
		switch {
		case item.FieldRef != nil && item.ResourceFieldRef != nil:
			errs = append(errs,
				field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		case item.FieldRef != nil:
			errs = append(errs, validateFieldRef(item.FieldRef, fileFields, at.Child("fieldRef"))...)
		case item.ResourceFieldRef != nil:
			errs = append(errs, validateResourceFieldRef(item.ResourceFieldRef, true, at.Child("resourceFieldRef"))...)
		default:
			errs = append(errs, field.Required(at, "one of fieldRef and resourceFieldRef is required"))
		}
		errs = append(errs, validateFileMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

func (k *podChecker) projected(v *corev1.ProjectedVolumeSource, at *field.Path) field.ErrorList {
	errs := validateFileMode(v.DefaultMode, at.Child("defaultMode"))
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
		one := volumes.Sources{At: at}
		if s.Secret != nil {
			one.Take("secret", func(at *field.Path) field.ErrorList {
				errs := rules.Required(at.Child("name"), s.Secret.Name)
				for j := range s.Secret.Items {
					claim(s.Secret.Name, s.Secret.Items[j].Path)
				}
				return append(errs, validateKeysToPaths(s.Secret.Items, at)...)
			})
		}
		if s.ConfigMap != nil {
			one.Take("configMap", func(at *field.Path) field.ErrorList {
				errs := rules.Required(at.Child("name"), s.ConfigMap.Name)
				for j := range s.ConfigMap.Items {
					claim(s.ConfigMap.Name, s.ConfigMap.Items[j].Path)
				}
				return append(errs, validateKeysToPaths(s.ConfigMap.Items, at)...)
			})
		}
		if s.DownwardAPI != nil {
			one.Take("downwardAPI", func(at *field.Path) field.ErrorList {
				for j := range s.DownwardAPI.Items {
					claim(s.DownwardAPI.Items[j].Path, s.DownwardAPI.Items[j].Path)
				}
				return validateDownwardFiles(s.DownwardAPI.Items, at)
			})
		}
		if s.ServiceAccountToken != nil {
			one.Take("serviceAccountToken", func(at *field.Path) field.ErrorList {
				return validateTokenProjection(s.ServiceAccountToken, k.kept.tokenPaths, whole, at)
			})
		}
		if s.ClusterTrustBundle != nil {
			one.Take("clusterTrustBundle", func(at *field.Path) field.ErrorList {
				claim(s.ClusterTrustBundle.Path, s.ClusterTrustBundle.Path)
				return validateProjectedBundle(s.ClusterTrustBundle, at)
			})
		}
		if s.PodCertificate != nil {
			one.Take("podCertificate", func(at *field.Path) field.ErrorList {
				claim(s.PodCertificate.CredentialBundlePath, s.PodCertificate.CredentialBundlePath)
				claim(s.PodCertificate.KeyPath, s.PodCertificate.KeyPath)
				claim(s.PodCertificate.CertificateChainPath, s.PodCertificate.CertificateChainPath)
				return validateProjectedCertificate(s.PodCertificate, at)
			})
		}
		errs = append(errs, one.Errs...) // upstream accepts an empty source
	}
	return errs
}

// validateTokenProjection validates a token's file; for the path, upstream's error is about the
// whole volume.
func validateTokenProjection(t *corev1.ServiceAccountTokenProjection, keptPath bool, whole,
	at *field.Path) field.ErrorList {
	const shortest, longest = 10 * 60, 1 << 32
	var errs field.ErrorList
	if s := t.ExpirationSeconds; s != nil {
		if *s < shortest {
			errs = append(errs,
				field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration less than 10 minutes"))
		}
		if *s > longest {
			errs = append(errs,
				field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	if t.Path == "" {
		return append(errs, field.Required(whole.Child("path"), ""))
	}
	if keptPath {
		return errs
	}
	return append(errs, validateVolumeFile(t.Path, whole.Child("path"))...)
}

func validateEphemeralVolume(v *corev1.EphemeralVolumeSource, at *field.Path) field.ErrorList {
	t := v.VolumeClaimTemplate
	if t == nil {
		return field.ErrorList{field.Required(at.Child("volumeClaimTemplate"), "")}
	}
	at = at.Child("volumeClaimTemplate")
	errs := rules.TemplateMeta(&t.ObjectMeta, at.Child("metadata"))
	return append(errs, volumes.ValidateClaimSpec(&t.Spec, volumes.ClaimFaults{}, at.Child("spec"))...)
}

func validateImageVolume(v *corev1.ImageVolumeSource, kept podFaults, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !kept.noImage {
		errs = rules.Required(at.Child("reference"), v.Reference)
	}
	return append(errs, rules.OneOf(string(v.PullPolicy), at.Child("pullPolicy"), string(corev1.PullAlways),
		string(corev1.PullIfNotPresent), string(corev1.PullNever))...)
}
