// cert-manager's controller, cainjector, and webhook in one program, for hack/cert-manager: what its own commands, that
// are no published module, do with its packages. The arguments are those of its chart. Without the issuers of ACME,
// Vault, and Venafi, which need the outside world. The name of the module gives access to cert-manager's internal
// packages.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	kscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	apireg "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cert-manager/cert-manager/internal/kube"
	"github.com/cert-manager/cert-manager/internal/webhook"
	cmscheme "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/scheme"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/gateways"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/ingresses"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/metrics"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	"github.com/cert-manager/cert-manager/pkg/healthz"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util"
	"github.com/cert-manager/cert-manager/pkg/webhook/options"
	logsapi "k8s.io/component-base/logs/api/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := os.Args[1]
	ctx = logf.NewContext(ctx, logf.Log, name)
	ctrl.SetLogger(logf.Log)
	commands := map[string]func(context.Context, []string) error{"controller": runController, "cainjector": runInjector,
		"webhook": runWebhook}
	if err := commands[name](ctx, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// logging adds cert-manager's flags for logs.
func logging(fs *pflag.FlagSet) func() error {
	cfg := logsapi.NewLoggingConfiguration()
	logf.AddFlags(cfg, fs)
	return func() error { return logf.ValidateAndApply(cfg) }
}

func runWebhook(ctx context.Context, args []string) error {
	fs := pflag.NewFlagSet("webhook", pflag.ContinueOnError)
	cfg, err := options.NewWebhookConfiguration()
	if err != nil {
		return err
	}
	options.NewWebhookFlags().AddFlags(fs)
	options.AddConfigFlags(fs, cfg)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := logf.ValidateAndApply(&cfg.Logging); err != nil {
		return err
	}
	server, err := webhook.NewCertManagerWebhookServer(logf.FromContext(ctx), *cfg)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

func runInjector(ctx context.Context, args []string) error {
	fs := pflag.NewFlagSet("cainjector", pflag.ContinueOnError)
	namespace := fs.String("leader-election-namespace", "kube-system", "")
	metrics := fs.String("metrics-listen-address", "0.0.0.0:9402", "")
	apply := logging(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kscheme.AddToScheme, cmscheme.AddToScheme, apiext.AddToScheme,
		apireg.AddToScheme} {
		utilruntime.Must(add(scheme))
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	lease, renew, retry := 60*time.Second, 40*time.Second, 15*time.Second
	mgr, err := ctrl.NewManager(util.RestConfigWithUserAgent(cfg, "cainjector"), ctrl.Options{
		Scheme:         scheme,
		Cache:          cache.Options{ReaderFailOnMissingInformer: true},
		Client:         client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		LeaderElection: true, LeaderElectionNamespace: *namespace,
		LeaderElectionID:              "cert-manager-cainjector-leader-election",
		LeaderElectionReleaseOnCancel: true,
		LeaderElectionResourceLock:    resourcelock.LeasesResourceLock,
		LeaderElectionLabels:          map[string]string{"app.kubernetes.io/managed-by": "cert-manager-cainjector"},
		LeaseDuration:                 &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		Metrics: metricsserver.Options{BindAddress: *metrics},
	})
	if err != nil {
		return err
	}
	all := map[string]bool{cainjector.MutatingWebhookConfigurationName: true,
		cainjector.ValidatingWebhookConfigurationName: true, cainjector.APIServiceName: true,
		cainjector.CustomResourceDefinitionName: true}
	if err := cainjector.RegisterAllInjectors(ctx, mgr, cainjector.SetupOptions{EnableCertificatesDataSource: true,
		EnabledReconcilersFor: all}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func runController(ctx context.Context, args []string) error {
	fs := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	resources := fs.String("cluster-resource-namespace", "kube-system", "")
	namespace := fs.String("leader-election-namespace", "kube-system", "")
	solver := fs.String("acme-http01-solver-image", "", "")
	gateways := fs.Bool("enable-gateway-api", false, "")
	apply := logging(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}
	quantity := resource.MustParse
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		KubernetesAPIQPS: 20, KubernetesAPIBurst: 50,
		IssuerOptions: controller.IssuerOptions{
			ClusterResourceNamespace: *resources, ClusterIssuerAmbientCredentials: true},
		ACMEOptions: controller.ACMEOptions{HTTP01SolverImage: *solver,
			HTTP01SolverResourceRequestCPU: quantity("10m"), HTTP01SolverResourceRequestMemory: quantity("64Mi"),
			HTTP01SolverResourceLimitsCPU: quantity("100m"), HTTP01SolverResourceLimitsMemory: quantity("64Mi"),
			ACMEHTTP01SolverRunAsNonRoot: true, DNS01CheckRetryPeriod: 10 * time.Second},
		IngressShimOptions: controller.IngressShimOptions{
			DefaultIssuerKind: "Issuer", DefaultIssuerGroup: "cert-manager.io",
			DefaultAutoCertificateAnnotations: []string{"kubernetes.io/tls-acme"}},
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes: []string{
				"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"},
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour},
		SchedulerOptions: controller.SchedulerOptions{MaxConcurrentChallenges: 60},
		ConfigOptions:    controller.ConfigOptions{EnableGatewayAPI: *gateways},
	})
	if err != nil {
		return err
	}
	base, err := factory.Build()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	serve := func(server *http.Server, ln net.Listener) {
		group.Go(func() error {
			<-ctx.Done()
			return server.Shutdown(context.Background())
		})
		group.Go(func() error {
			if err := server.Serve(ln); err != http.ErrServerClosed {
				return err
			}
			return nil
		})
	}
	ln, err := net.Listen("tcp", "0.0.0.0:9402")
	if err != nil {
		return err
	}
	serve(base.Metrics.NewServer(ln), ln)
	health := healthz.NewServer(20 * time.Second)
	hln, err := net.Listen("tcp", "0.0.0.0:9403")
	if err != nil {
		return err
	}
	group.Go(func() error { return health.Start(ctx, hln) })

	elected := make(chan struct{})
	cfg, err := kube.BuildClientConfig("", "")
	if err != nil {
		return err
	}
	locks, err := kubernetes.NewForConfig(util.RestConfigWithUserAgent(cfg, "leader-election"))
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, *namespace, "cert-manager-controller",
		locks.CoreV1(), locks.CoordinationV1(),
		resourcelock.ResourceLockConfig{
			Identity: host + "-external-cert-manager-controller", EventRecorder: base.Recorder})
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock,
		LeaseDuration: 60 * time.Second, RenewDeadline: 40 * time.Second, RetryPeriod: 15 * time.Second,
		ReleaseOnCancel: true, WatchDog: health.LeaderHealthzAdaptor,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { close(elected) },
			OnStoppedLeading: func() {}}})
	if err != nil {
		return err
	}
	group.Go(func() error {
		elector.Run(ctx)
		if ctx.Err() == nil {
			return fmt.Errorf("leadership lost")
		}
		return nil
	})
	select {
	case <-ctx.Done():
		return group.Wait()
	case <-elected:
	}
	known := controller.Known()
	for name, build := range known {
		if name == "gateway-shim" && !*gateways {
			continue
		}
		c, err := build(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		group.Go(func() error { return c.Run(5, ctx) })
	}
	base.SharedInformerFactory.Start(ctx.Done())
	base.KubeSharedInformerFactory.Start(ctx.Done())
	base.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	if *gateways {
		base.GWShared.Start(ctx.Done())
	}
	return group.Wait()
}
