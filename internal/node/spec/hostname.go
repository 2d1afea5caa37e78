package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Limits of a host name: a DNS label for the short one, the kernel's for what a
// process sees (L3.145).
const (
	maxLabel    = 63
	maxHostname = 64
)

// Hostname returns the short host name of a pod and its domain, which is empty without a subdomain (L3.145).
func Hostname(pod *corev1.Pod, clusterDomain string) (hostname, domain string) {
	if o := pod.Spec.HostnameOverride; o != nil && *o != "" {
		return *o, ""
	}
	hostname = pod.Name
	if pod.Spec.Hostname != "" {
		hostname = pod.Spec.Hostname
	}
	if len(hostname) > maxLabel {
		hostname = strings.TrimRight(hostname[:maxLabel], "-.")
	}
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	return hostname, domain
}

// kernelHostname is the name that uname shows in the pod; empty on the host network.
func kernelHostname(pod *corev1.Pod, clusterDomain string) (string, error) {
	if pod.Spec.HostNetwork && (pod.Spec.HostnameOverride == nil || *pod.Spec.HostnameOverride == "") {
		return "", nil
	}
	hostname, domain := Hostname(pod, clusterDomain)
	if err := checkHostname(hostname); err != nil {
		return "", err
	}
	if pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN || domain == "" {
		return hostname, nil
	}
	if err := checkHostname(domain); err != nil {
		return "", err
	}
	fqdn := hostname + "." + domain
	if len(fqdn) > maxHostname {
		return "", fmt.Errorf(
			"failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
			fqdn, maxHostname, len(fqdn))
	}
	return fqdn, nil
}

// HostsFile is the content of the pod's /etc/hosts (L3.141).
func HostsFile(pod *corev1.Pod, node *Node, podIPs []string) ([]byte, error) {
	if err := checkHosts(pod); err != nil {
		return nil, err
	}
	var b strings.Builder
	if pod.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(node.HostsFile)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n" +
			"::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\n" +
			"fe00::0\tip6-mcastprefix\n" +
			"fe00::1\tip6-allnodes\n" +
			"fe00::2\tip6-allrouters\n")
		hostname, domain := Hostname(pod, node.ClusterDomain)
		if err := checkHostname(hostname + domain); err != nil {
			return nil, err
		}
		for _, ip := range podIPs {
			b.WriteString(ip + "\t")
			if domain != "" {
				b.WriteString(hostname + "." + domain + "\t")
			}
			b.WriteString(hostname + "\n")
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
		}
	}
	return []byte(b.String()), nil
}

// managesHosts reports whether the container gets the managed hosts file (L3.140).
func managesHosts(pod *corev1.Pod, c *corev1.Container, podIPs []string) bool {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == hostsPath {
			return false
		}
	}
	return pod.Spec.HostNetwork || len(podIPs) > 0
}
