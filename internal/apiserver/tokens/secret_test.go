package tokens

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

func TestTokenOfASecret(t *testing.T) {
	f := newFixture(t)
	var marks []string
	f.used = func(_ context.Context, s *corev1.Secret, day string) {
		marks = append(marks, s.Name+" "+day)
		MarkUsed(s, day)
	}
	secret, account := f.objects["secrets/s"].(*corev1.Secret),
		f.objects["serviceaccounts/robot"].(*corev1.ServiceAccount)
	token, err := f.ForSecret(account, secret)
	if err != nil {
		t.Fatal(err)
	}
	try := func(ctx context.Context) (*authenticator.Response, bool) {
		who, ok, err := f.Authenticator().AuthenticateToken(ctx, token)
		if ok == (err != nil) {
			t.Errorf("ok %v and error %v", ok, err)
		}
		return who, ok
	}
	if _, ok := try(t.Context()); ok {
		t.Error("good before the secret holds it")
	}
	secret.Data = map[string][]byte{"token": []byte(token)}
	who, ok := try(t.Context())
	if !ok || who.User.GetName() != "system:serviceaccount:ns:robot" || who.User.GetUID() != "sa-uid" ||
		len(who.User.GetGroups()) != 2 {
		t.Fatalf("%+v", who)
	}
	f.now = f.now.Add(100 * 365 * 24 * time.Hour)
	if _, ok := try(t.Context()); !ok {
		t.Error("it has an end")
	}
	try(t.Context())
	if len(marks) != 2 || marks[0] != "s 2026-01-01" || marks[1] != "s 2125-12-08" {
		t.Errorf("marks %v", marks)
	}
	if _, ok := try(authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault"})); ok {
		t.Error("good for others than the API server")
	}
	for name, change := range map[string]func(){
		"marked invalid":        func() { secret.Labels[LabelInvalidSince] = "2026-01-01" },
		"another token":         func() { secret.Data["token"] = []byte("x") },
		"secret being deleted":  func() { secret.DeletionTimestamp = new(metav1.Now()) },
		"secret gone":           func() { delete(f.objects, "secrets/s") },
		"account made anew":     func() { account.UID = "new" },
		"account being deleted": func() { account.DeletionTimestamp = new(metav1.Now()) },
		"account gone":          func() { delete(f.objects, "serviceaccounts/robot") },
	} {
		before, beforeAccount := secret.DeepCopy(), account.DeepCopy()
		change()
		if _, ok := try(t.Context()); ok {
			t.Errorf("%s: good", name)
		}
		*secret, *account = *before, *beforeAccount
		f.objects["secrets/s"], f.objects["serviceaccounts/robot"] = secret, account
		if _, ok := try(t.Context()); !ok {
			t.Fatalf("%s: no good after it was undone", name)
		}
	}
}
