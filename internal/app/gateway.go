package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"carob/internal/base/addons"
	"carob/internal/base/socketstore"
	"carob/internal/core/gatewayplan"
	"carob/internal/gateway"
)

// gatewayUser is the identity of the gateway; the add-on has its rights.
const gatewayUser = "system:serviceaccount:kube-system:carob-gateway"

// startGateway starts the data plane of Ingresses and Gateways if it was given an address.
func (c *carob) startGateway(ctx context.Context) error {
	ports := c.in.Routes
	if !ports.On() {
		return nil
	}
	sockets := socketstore.Open(gateway.SocketPrefix)
	for flag, at := range map[string]netip.AddrPort{"--gateway-http": ports.HTTP, "--gateway-https": ports.HTTPS,
		"--endpoint-picker-listen": ports.Picker} {
		if !at.IsValid() {
			continue
		}
		if sockets.Has(socketstore.Name(gateway.SocketPrefix, at.String())) {
			continue // the previous process has left it open
		}
		// The port is opened with the first Ingress, but a port that is in use must be reported
		// at the start.
		ln, err := listen("the gateway", flag, at.String())
		if err != nil {
			return err
		}
		_ = ln.Close()
	}
	cfg := c.server.ClientConfig(gatewayUser, "system:serviceaccounts", "system:serviceaccounts:kube-system",
		user.AllAuthenticated)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	admin := c.server.ClientConfig(ownUser, user.SystemPrivilegedGroup)
	objects, err := dynamic.NewForConfig(admin)
	if err != nil {
		return err
	}
	own, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "carob-gateway", Host: c.in.NodeName})
	var secure *tls.Config
	if !ports.PickerPlain {
		secure = &tls.Config{GetCertificate: c.keys.NodeServing.Serve, MinVersion: tls.VersionTLS12}
	}
	c.gatewayStored = make(chan struct{})
	c.gateway = gateway.New(gateway.Config{Client: client, REST: cfg,
		Events: recorder, Traces: c.traces.gateway,
		Register: legacyregistry.Registerer(), AccessLog: ports.AccessLog, Sockets: sockets,
		Proxies: ports.Proxies, Picker: ports.Picker, PickerTLS: secure,
		Measured: c.server.ServeExternalMetrics, Listening: c.gatewayListens,
		HTTP: ports.HTTP, HTTPS: ports.HTTPS, Pool: ports.Addresses, Host: c.machine.hostIPs})
	c.gatewayAPI.follow(c.gateway.SetGatewayAPI)
	c.inference.follow(c.gateway.SetInference)
	c.parts.start(ctx, "gateway", func(ctx context.Context) error {
		events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		defer events.Shutdown()
		if err := untilDone(ctx, func(ctx context.Context) error {
			return prepareGateway(ctx, own, objects, ports.Serves())
		}); err != nil {
			return nil //nolint:nilerr // a stop was requested
		}
		close(c.gatewayStored)
		return c.gateway.Run(ctx)
	})
	return nil
}

// gatewayListens has no Service take a port of the gateway.
func (c *carob) gatewayListens(tcp, udp []netip.AddrPort) {
	if c.services != nil {
		c.services.SetOwn(tcp, udp)
	}
}

// gatewayTime is how long the start of carob waits for the objects of the gateway: a webhook may refuse them for as
// long as it likes.
const gatewayTime = 10 * time.Second

// awaitGateway waits until the kinds and the classes of the gateway are stored: objects that a user applies after the
// start must not be refused. After gatewayTime carob starts without them; they are stored as soon as possible.
func (c *carob) awaitGateway(ctx context.Context) error {
	if c.gateway == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, gatewayTime)
	defer cancel()
	err := c.parts.await(limited, c.gatewayStored)
	if err != nil && errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Started without the kinds of the Gateway API, which are not stored yet")
		return nil
	}
	return err
}

// untilDone repeats what may fail while the API server starts.
func untilDone(ctx context.Context, f func(context.Context) error) error {
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := f(ctx)
		if err == nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Cannot prepare the gateway; trying again", "after", wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// gatewayKinds are the kinds of the objects that the gateway needs.
func gatewayKind(kind string) schema.GroupVersionResource {
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	switch kind {
	case "ClusterRole":
		return rbac.WithResource("clusterroles")
	case "ClusterRoleBinding":
		return rbac.WithResource("clusterrolebindings")
	}
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
}

// prepareGateway stores what the gateway needs: its RBAC rules, the definitions of the Gateway API, and the classes,
// and waits until the kinds are served. Objects that exist stay as they are, except carob's own definitions, which
// are updated. Classes are stored only if carob serves the objects that name them.
func prepareGateway(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface, serves bool) error {
	addon, _ := addons.Find(addons.Gateway)
	manifests, err := addon.Manifests()
	if err != nil {
		return err
	}
	store := func(ctx context.Context, o *unstructured.Unstructured) error {
		if err := storeAddonObject(ctx, objects.Resource(gatewayKind(o.GetKind())), addon, o); err != nil {
			return fmt.Errorf("store %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		return nil
	}
	last := len(manifests) - 1
	g, group := errgroup.WithContext(ctx)
	for _, o := range manifests[:last] {
		g.Go(func() error { return store(group, o) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := store(ctx, manifests[last]); err != nil { // the switch
		return err
	}
	if err := awaitKinds(ctx, client.Discovery(), manifests); err != nil {
		return err
	}
	if !serves {
		return nil
	}
	class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "gateway.networking.k8s.io/v1",
		"kind": "GatewayClass", "metadata": map[string]any{"name": gatewayplan.Class},
		"spec": map[string]any{"controllerName": string(gatewayplan.GatewayController)}}}
	classes := objects.Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1",
		Resource: "gatewayclasses"})
	if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("store GatewayClass %s: %w", gatewayplan.Class, err)
	}
	return storeIngressClass(ctx, client)
}

// awaitKinds waits until the API server serves the kinds of definitions, some time after it has stored them: until then
// it refuses objects of these kinds.
func awaitKinds(ctx context.Context, api discovery.ServerResourcesInterface, all []*unstructured.Unstructured) error {
	for _, o := range all {
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		for _, v := range versions {
			if v, ok := v.(map[string]any); ok && v["served"] == true {
				kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
				if err := awaitKind(ctx, api, group+"/"+fmt.Sprint(v["name"]), kind); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func awaitKind(ctx context.Context, api discovery.ServerResourcesInterface, version, kind string) error {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		// An error is one more answer without the kind: the group may not be there yet.
		if list, _ := api.ServerResourcesForGroupVersion(version); list != nil &&
			slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s of %s is served: %w", kind, version, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// bundle is the annotation with the version of a definition.
const bundle = "gateway.networking.k8s.io/bundle-version"

func storeAddonObject(ctx context.Context, api dynamic.ResourceInterface, addon addons.Addon,
	o *unstructured.Unstructured) error {
	old, err := api.Get(ctx, o.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case old.GetLabels()[addons.Label] != addon.Name:
		return nil // not carob's
	case o.GetKind() == "CustomResourceDefinition" && old.GetAnnotations()[bundle] == o.GetAnnotations()[bundle]:
		return nil // also when its owner has disabled the add-on
	}
	if labels := old.GetLabels; old != nil && labels()[addons.State] != "" {
		all := o.GetLabels()
		all[addons.State] = labels()[addons.State]
		o.SetLabels(all)
	}
	_, err = api.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "carob-addon", Force: true})
	return err
}

// storeIngressClass creates the class, as the default one if there is no other. It never changes
// an existing class: users may edit it.
func storeIngressClass(ctx context.Context, client kubernetes.Interface) error {
	all, err := client.NetworkingV1().IngressClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IngressClasses: %w", err)
	}
	class := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: gatewayplan.Class},
		Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}}
	if len(all.Items) == 0 {
		class.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
	}
	_, err = client.NetworkingV1().IngressClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("store IngressClass %s: %w", gatewayplan.Class, err)
	}
	return nil
}
