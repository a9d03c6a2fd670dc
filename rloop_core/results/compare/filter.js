// Shows and hides what the page holds already; without it everything is shown.
(function () {
  var form = document.querySelector("form.filters");
  if (!form) { return; }
  var cases = Array.prototype.slice.call(document.querySelectorAll("details.case"));
  function fits(one, name) {
    var wanted = form.elements[name].value;
    return !wanted || one.getAttribute("data-" + name) === wanted;
  }
  function update() {
    var verdict = form.elements.verdict.value;
    var words = form.elements.words.value.trim().toLowerCase();
    var shown = 0;
    cases.forEach(function (one) {
      var any = false;
      one.querySelectorAll(".answer").forEach(function (answer) {
        answer.hidden = Boolean(verdict) && answer.getAttribute("data-verdict") !== verdict;
        any = any || !answer.hidden;
      });
      one.hidden = !(any && fits(one, "place") && fits(one, "fate") &&
        (!words || one.textContent.toLowerCase().indexOf(words) >= 0));
      shown += one.hidden ? 0 : 1;
    });
    form.querySelector("output").textContent = shown + " of " + cases.length + " problems shown";
  }
  form.addEventListener("input", update);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.hidden = false;
  update();
})();
