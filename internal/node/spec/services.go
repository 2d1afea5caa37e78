package spec

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// serviceEnv are the environment variables of services (L3.132), sorted by service.
func serviceEnv(pod *corev1.Pod, services []*corev1.Service) []envVar {
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	byName := make(map[string]*corev1.Service, len(services))
	var names []string
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		own := s.Namespace == pod.Namespace && links
		api := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		if !own && !api {
			continue
		}
		if _, ok := byName[s.Name]; !ok {
			names = append(names, s.Name)
		} else if !own {
			continue // a service of that name in the namespace takes precedence
		}
		byName[s.Name] = s
	}
	slices.Sort(names)
	var env []envVar
	for _, name := range names {
		env = appendService(env, byName[name])
	}
	return env
}

func appendService(env []envVar, s *corev1.Service) []envVar {
	upper := func(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
	name := upper(s.Name)
	add := func(suffix, value string) { env = append(env, envVar{name + suffix, value}) }

	add("_SERVICE_HOST", s.Spec.ClusterIP)
	add("_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			add("_SERVICE_PORT_"+upper(p.Name), strconv.Itoa(int(p.Port)))
		}
	}
	for i, p := range s.Spec.Ports {
		proto := string(p.Protocol)
		if proto == "" {
			proto = string(corev1.ProtocolTCP)
		}
		port := strconv.Itoa(int(p.Port))
		url := strings.ToLower(proto) + "://" + net.JoinHostPort(s.Spec.ClusterIP, port)
		if i == 0 {
			add("_PORT", url)
		}
		prefix := fmt.Sprintf("_PORT_%s_%s", port, strings.ToUpper(proto))
		add(prefix, url)
		add(prefix+"_PROTO", strings.ToLower(proto))
		add(prefix+"_PORT", port)
		add(prefix+"_ADDR", s.Spec.ClusterIP)
	}
	return env
}
